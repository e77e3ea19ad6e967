package jupyter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// maxMessage is how many bytes of frames a message of a kernel may have. A longer one is passed
	// over, and the cell reports that.
	maxMessage = 64 << 20
	// maxFrames is how many frames a message may have: identities, the delimiter, the signature,
	// four parts and buffers.
	maxFrames = 256
	// maxSkipped is how long a message may be to be passed over. A kernel that announces a longer
	// one is ended.
	maxSkipped = 4 << 30
	// maxCommand is how long a command of ZMTP itself may be.
	maxCommand = 4 << 10
)

// The flags of a ZMTP frame (RFC 23).
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1 // its size has eight bytes, not one
	flagCommand = 1 << 2
)

// greeting begins a connection of ZMTP 3.0, which has no pings that a reader would have to answer:
// a signature, the version, the security mechanism, and that we are no server.
var greeting = append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'},
	make([]byte, 48)...)

// oversizeError is the error of a message that was longer than maxMessage and has been passed over.
// The next one can be read.
type oversizeError struct{ size uint64 }

func (e *oversizeError) Error() string {
	return fmt.Sprintf(
		"a message of the kernel with %d bytes or more was dropped; at most %d are taken", e.size,
		maxMessage)
}

// greet makes a new connection one of a socket type and an identity. out is flushed.
func greet(in *bufio.Reader, out *bufio.Writer, socketType, identity string) error {
	if _, err := out.Write(greeting); err != nil {
		return err
	}
	ready := []byte("\x05READY")
	for _, property := range [][2]string{{"Socket-Type", socketType}, {"Identity", identity}} {
		ready = append(append(ready, byte(len(property[0]))), property[0]...)
		ready = append(binary.BigEndian.AppendUint32(ready, uint32(len(property[1]))),
			property[1]...)
	}
	if err := writeFrame(out, flagCommand, ready); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	var theirs [64]byte
	if _, err := io.ReadFull(in, theirs[:]); err != nil {
		return err
	}
	if mechanism := theirs[12:32]; theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 ||
		!bytes.Equal(mechanism, greeting[12:32]) {
		return errors.New("the kernel does not support ZMTP 3 without security")
	}
	flags, size, err := readFrameHeader(in)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errors.New("the kernel does not begin with a ZMTP command")
	}
	command := make([]byte, size)
	if _, err := io.ReadFull(in, command); err != nil {
		return err
	}
	if !bytes.HasPrefix(command, []byte("\x05READY")) {
		return fmt.Errorf("the kernel refuses the connection: %q", command)
	}
	return nil
}

// writeFrame writes a frame and does not flush it.
func writeFrame(out *bufio.Writer, flags byte, body []byte) error {
	header := []byte{flags, byte(len(body))}
	if len(body) > 255 {
		header = binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	}
	if _, err := out.Write(header); err != nil {
		return err
	}
	_, err := out.Write(body)
	return err
}

func readFrameHeader(in *bufio.Reader) (flags byte, size uint64, err error) {
	if flags, err = in.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&flagLong == 0 {
		short, err := in.ReadByte()
		return flags, uint64(short), err
	}
	var long [8]byte
	_, err = io.ReadFull(in, long[:])
	return flags, binary.BigEndian.Uint64(long[:]), err
}

// readMessage returns the frames of the next message; commands are passed over. It returns an
// [oversizeError] for a message that is too long and has been passed over. After any other error
// the connection is of no use. It allocates nothing that has not arrived.
func readMessage(in *bufio.Reader) ([][]byte, error) {
	var frames [][]byte
	var total uint64
	oversize := false
	for {
		flags, size, err := readFrameHeader(in)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if size > maxCommand {
				return nil, fmt.Errorf("a ZMTP command of %d bytes", size)
			}
			if _, err := in.Discard(int(size)); err != nil {
				return nil, err
			}
			continue
		}
		if size > maxSkipped || total+size > maxSkipped {
			return nil, fmt.Errorf("a message that announces %d bytes", max(size, total+size))
		}
		if total += size; total > maxMessage || len(frames) == maxFrames {
			frames, oversize = nil, true
		}
		if oversize {
			if _, err := io.CopyN(io.Discard, in, int64(size)); err != nil {
				return nil, err
			}
		} else {
			var frame bytes.Buffer
			if _, err := io.CopyN(&frame, in, int64(size)); err != nil {
				return nil, err
			}
			frames = append(frames, frame.Bytes())
		}
		if flags&flagMore != 0 {
			continue
		}
		if oversize {
			return nil, &oversizeError{total}
		}
		return frames, nil
	}
}
