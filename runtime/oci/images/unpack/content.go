package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// holeBytes is the length of the runs of zeros that are left out, each at a multiple of it.
const holeBytes = 64 << 10

var zeros [holeBytes]byte

// copy writes exactly size bytes.
func (l *layer) copy(fd int, content io.Reader, size int64) error {
	written := int64(0) // up to where
	for offset := int64(0); offset < size; {
		if err := l.ctx.Err(); err != nil { // a hole in the archive is not read
			return err
		}
		part := l.buffer[:min(int64(len(l.buffer)), size-offset)]
		if _, err := io.ReadFull(content, part); err != nil {
			return refusedf("the archive ends within the file")
		}
		for len(part) > 0 {
			hole, n := run(part)
			if !hole {
				if err := l.write(fd, part[:n], offset); err != nil {
					return err
				}
				written = offset + int64(n)
			}
			part, offset = part[n:], offset+int64(n)
		}
	}
	if written == size {
		return nil
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// run returns the length of what the part of a file begins with: a hole, or what lies before the
// next hole.
func run(part []byte) (hole bool, n int) {
	for n < len(part) {
		block := part[n:min(n+holeBytes, len(part))]
		zero := bytes.Equal(block, zeros[:len(block)])
		if n == 0 {
			hole = zero
		}
		if zero != hole {
			break
		}
		n += len(block)
	}
	return hole, n
}

func (l *layer) write(fd int, part []byte, offset int64) error {
	if err := l.take(inBlocks(int64(len(part)))); err != nil {
		return err
	}
	for len(part) > 0 {
		n, err := unix.Pwrite(fd, part, offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write file: %w", err)
		}
		part, offset = part[n:], offset+int64(n)
	}
	return nil
}
