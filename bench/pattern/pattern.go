// Package pattern compares what arrives with what was sent: a pattern, over and over, up to a size.
// It is as exact as a digest and far cheaper, and it says where the first difference is. The bench
// and its floors use it alike, so that both pay the same for it.
package pattern

import (
	"bytes"
	"fmt"
)

// Checker expects Size bytes, which repeat Bytes. The zero count of seen bytes is the beginning.
type Checker struct {
	Bytes []byte
	Size  int64
	seen  int64
}

// Take compares the next bytes. The error names the first byte at which a difference can be.
func (c *Checker) Take(got []byte) error {
	for len(got) > 0 {
		at := int(c.seen % int64(len(c.Bytes)))
		n := min(len(got), len(c.Bytes)-at)
		if c.seen+int64(n) > c.Size || !bytes.Equal(got[:n], c.Bytes[at:at+n]) {
			return fmt.Errorf("data differs from byte %d on", c.seen)
		}
		c.seen += int64(n)
		got = got[n:]
	}
	return nil
}

// End returns an error unless everything has come.
func (c *Checker) End() error {
	if c.seen != c.Size {
		return fmt.Errorf("%d bytes came of %d", c.seen, c.Size)
	}
	return nil
}

// Lines is a checker for size bytes that are lines of 999 times "x".
func Lines(size int64) *Checker {
	line := append(bytes.Repeat([]byte("x"), 999), '\n')
	return &Checker{Bytes: bytes.Repeat(line, 64), Size: size}
}
