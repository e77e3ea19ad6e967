package e2b

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// The forms of values in Protocol Buffers' JSON that package encoding/json does not read by itself
// (protobuf.dev/programming-guides/json).

// number is a uint32: a number, or a string with one.
type number uint32

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	value, err := strconv.ParseUint(strings.Trim(string(text), `"`), 10, 32)
	if err != nil {
		return errors.New("must be a number of 32 bits, without a sign")
	}
	*n = number(value)
	return nil
}

// blob is bytes: base64 of either alphabet, with padding or without.
type blob []byte

// UnmarshalJSON implements json.Unmarshaler.
func (b *blob) UnmarshalJSON(text []byte) error {
	var encoded string
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	encoded = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(encoded, "="))
	decoded, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil {
		return errors.New("bytes must be base64")
	}
	*b = decoded
	return nil
}
