package main

import (
	"bytes"
	"fmt"
)

// checker compares what arrives with what was sent: a pattern, over and over, up to a size. It is as exact as a digest
// and far cheaper, and it says where the first difference is.
type checker struct {
	pattern []byte
	size    int64 // bytes expected in all
	seen    int64
}

var newline = []byte{'\n'}

// take compares the next bytes. The error is errLost.
func (c *checker) take(got []byte) error {
	for len(got) > 0 {
		at := int(c.seen % int64(len(c.pattern)))
		n := min(len(got), len(c.pattern)-at)
		if c.seen+int64(n) > c.size || !bytes.Equal(got[:n], c.pattern[at:at+n]) {
			return fmt.Errorf("%w: what came is different from byte %d on", errLost, c.seen)
		}
		c.seen += int64(n)
		got = got[n:]
	}
	return nil
}

// takeEvent compares the output that an event stands for.
func (c *checker) takeEvent(e event) error {
	line, whole := e.output()
	if err := c.take(line); err != nil || !whole {
		return err
	}
	return c.take(newline)
}

// end tells whether everything has come.
func (c *checker) end() error {
	if c.seen != c.size {
		return fmt.Errorf("%w: %d bytes came of %d", errLost, c.seen, c.size)
	}
	return nil
}
