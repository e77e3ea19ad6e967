package bundle

import "encoding/hex"

// machineIDBytes is what a machine id has, as hexadecimal digits.
const machineIDBytes = 16

// HasMachineID reports whether the layers, lowest first, have a machine id in /etc/machine-id,
// which containers of them would share. An empty file, and the word uninitialized, are none.
func HasMachineID(directories []string) (bool, error) {
	image, err := openLayers(directories)
	if err != nil {
		return false, err
	}
	defer image.close()
	content, err := image.read("/etc/machine-id")
	if err != nil || len(content) < hex.EncodedLen(machineIDBytes) {
		return false, nil //nolint:nilerr // no such file, or another kind of file
	}
	id, rest := content[:hex.EncodedLen(machineIDBytes)], content[hex.EncodedLen(machineIDBytes):]
	_, err = hex.Decode(make([]byte, machineIDBytes), id)
	return err == nil && (len(rest) == 0 || rest[0] == '\n'), nil
}
