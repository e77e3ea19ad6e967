package jupyter

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// delimiter ends the routing part of a message on the wire. What follows are the signature, the
// header, the parent's header, the metadata and the content, and then raw buffers, which no message
// that we look at has.
const delimiter = "<IDS|MSG>"

// errSignature: a message is not from the kernel that has our key.
var errSignature = errors.New("the signature is wrong")

// wire turns messages into the frames of Jupyter's wire protocol and back.
type wire struct {
	key []byte
}

func (w wire) sign(parts [][]byte) []byte {
	mac := hmac.New(sha256.New, w.key)
	for _, part := range parts {
		mac.Write(part)
	}
	return hex.AppendEncode(nil, mac.Sum(nil))
}

func (w wire) encode(m message) ([][]byte, error) {
	header, err := json.Marshal(m.Header)
	if err != nil {
		return nil, err
	}
	parent, err := json.Marshal(m.Parent)
	if err != nil {
		return nil, err
	}
	parts := [][]byte{header, parent, m.Metadata, m.Content}
	return append([][]byte{[]byte(delimiter), w.sign(parts)}, parts...), nil
}

// decode returns the message that came on a channel. It returns errSignature.
func (w wire) decode(frames [][]byte, on channel) (message, error) {
	m := message{Channel: on}
	for len(frames) > 0 && !bytes.Equal(frames[0], []byte(delimiter)) {
		frames = frames[1:]
	}
	if len(frames) < 6 {
		return m, fmt.Errorf("a message must have %s and five frames behind it", delimiter)
	}
	parts := frames[2:6]
	if !hmac.Equal(frames[1], w.sign(parts)) {
		return m, errSignature
	}
	if err := json.Unmarshal(parts[0], &m.Header); err != nil {
		return m, fmt.Errorf("header: %w", err)
	}
	if err := json.Unmarshal(parts[1], &m.Parent); err != nil {
		return m, fmt.Errorf("parent header: %w", err)
	}
	m.Metadata, m.Content = parts[2], parts[3]
	return m, nil
}
