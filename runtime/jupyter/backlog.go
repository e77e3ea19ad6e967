package jupyter

import (
	"bytes"
	"io"
	"sync"
)

// chunkSize is how much is taken off a channel at once.
const chunkSize = 64 << 10

// backlogLimit is how many bytes wait in a backlog before no more are taken off the channel.
const backlogLimit = 32 << 20

// backlog holds the bytes that have come from a channel and are not yet looked at. A kernel may
// drop what it publishes when about a thousand messages wait at its own end, so its bytes are taken
// off the socket when the cell's reader is slow. Beyond backlogLimit the kernel waits, or drops:
// ipykernel with our settings keeps what it cannot send.
type backlog struct {
	mu      sync.Mutex
	filled  sync.Cond // there is something to read
	drained sync.Cond // there is less than there was
	chunks  [][]byte
	held    int // bytes in chunks
	err     error
	left    bool // there is no reader any more
}

func newBacklog() *backlog {
	b := new(backlog)
	b.filled.L, b.drained.L = &b.mu, &b.mu
	return b
}

// fill takes what comes from the channel until it ends.
func (b *backlog) fill(from io.Reader) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := from.Read(buffer)
		b.mu.Lock()
		if n > 0 && !b.left {
			b.chunks = append(b.chunks, bytes.Clone(buffer[:n]))
			b.held += n
		}
		b.err = err
		b.filled.Signal()
		for err == nil && b.held > backlogLimit && !b.left {
			b.drained.Wait()
		}
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read waits for what comes, and returns the channel's error once everything has been read. Read
// must not be called concurrently.
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
	b.held -= n
	b.drained.Signal()
	if b.chunks[0] = b.chunks[0][n:]; len(b.chunks[0]) == 0 {
		b.chunks[0] = nil // for the garbage collector
		b.chunks = b.chunks[1:]
	}
	return n, nil
}

// leave is called when there is no reader any more; fill then discards what comes.
func (b *backlog) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.chunks, b.held = true, nil, 0
	b.drained.Signal()
}
