package jupyter

import (
	"io"
	"sync/atomic"
)

// arrivals follows what comes from a kernel until it is passed on. A long message takes a while to
// arrive and to be decoded; the kernel is not silent meanwhile.
type arrivals struct {
	bytes    atomic.Uint64 // read so far
	decoding atomic.Int32  // messages that have arrived and are not passed on yet
}

// count returns a reader of the same bytes that counts them.
func (a *arrivals) count(from io.Reader) io.Reader { return countingReader{from, &a.bytes} }

// arrived is called when a message is complete, and the returned function when it has been passed
// on.
func (a *arrivals) arrived() (passedOn func()) {
	a.decoding.Add(1)
	return func() { a.decoding.Add(-1) }
}

// observe returns a function that reports whether a message has been arriving, or is being decoded,
// since it was called last.
func (a *arrivals) observe() func() bool {
	seen := a.bytes.Load()
	return func() bool {
		now := a.bytes.Load()
		moved := now != seen
		seen = now
		return moved || a.decoding.Load() > 0
	}
}

type countingReader struct {
	from  io.Reader
	bytes *atomic.Uint64
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.bytes.Add(uint64(n))
	return n, err
}
