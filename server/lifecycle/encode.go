package lifecycle

import (
	"bytes"
	"encoding/json"
)

// EncodeJSON returns a value as the service keeps it. It is json.Marshal with <, > and & as they
// are: those would have six bytes each, so that a client could have many times as much kept as it
// sends.
func EncodeJSON(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}
