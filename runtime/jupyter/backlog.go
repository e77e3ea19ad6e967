package jupyter

import (
	"io"
	"sync"
)

// chunkSize is how much is taken off a channel at once.
const chunkSize = 256 << 10

// backlog holds the bytes that have come from a channel and are not yet looked at. It has no limit: a kernel drops what it publishes
// when about a thousand messages wait at its own end, so its bytes must be taken off the socket however slow the cell's reader is.
type backlog struct {
	mu     sync.Mutex
	filled sync.Cond
	chunks [][]byte
	err    error
}

func newBacklog() *backlog {
	b := new(backlog)
	b.filled.L = &b.mu
	return b
}

// fill takes what comes from the channel until it ends.
func (b *backlog) fill(from io.Reader) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := from.Read(buffer)
		b.mu.Lock()
		if n > 0 {
			b.chunks = append(b.chunks, append([]byte(nil), buffer[:n]...))
		}
		b.err = err
		b.filled.Signal()
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read waits for what comes, and returns the channel's error once everything has been read. One goroutine at a time may call it.
func (b *backlog) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.chunks) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.filled.Wait()
	}
	n := copy(p, b.chunks[0])
	if b.chunks[0] = b.chunks[0][n:]; len(b.chunks[0]) == 0 {
		b.chunks[0] = nil // for the garbage collector
		b.chunks = b.chunks[1:]
	}
	return n, nil
}
