package images

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// What a zstd archive may ask for, in bytes of memory. Levels up to 19 of zstd need 8 MiB; level
// 21, and older Go programs at their best, need more. Few layers at once may have that.
const (
	window     = 8 << 20
	wideWindow = 64 << 20
)

// needsWideWindow says that decompress failed because the archive asks for more than its window.
func needsWideWindow(err error) bool {
	return errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded)
}

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// decompress reads gzip, zstd and what is not compressed. It looks at the content: media types and
// file names are often wrong. Closing the result does not close r. It reads r to its end. maxWindow
// is what zstd may ask for.
func decompress(r io.Reader, maxWindow uint64) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 256<<10)
	start, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(start, gzipMagic):
		return gzip.NewReader(buffered)
	case bytes.HasPrefix(start, zstdMagic):
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return decoder.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

// aheadReader reads in a goroutine of its own.
type aheadReader struct {
	full    chan chunk
	free    chan []byte
	stopped chan struct{}
	ended   chan struct{}
	current chunk
	rest    []byte
}

// chunk is what one turn of reading returned.
type chunk struct {
	buffer []byte // all of it
	n      int
	err    error
}

const (
	aheadBytes  = 256 << 10
	aheadChunks = 4
)

// readAhead opens and reads a source in a goroutine of its own, a few chunks ahead of the reader.
// The reader calls stop, after it has made sure that the source's Read returns.
func readAhead(open func() (io.ReadCloser, error)) *aheadReader {
	r := &aheadReader{
		full: make(chan chunk, aheadChunks), free: make(chan []byte, aheadChunks),
		stopped: make(chan struct{}), ended: make(chan struct{}),
	}
	for range aheadChunks {
		r.free <- make([]byte, aheadBytes)
	}
	go r.fill(open)
	return r
}

func (r *aheadReader) fill(open func() (io.ReadCloser, error)) {
	defer close(r.ended)
	source, err := open()
	if err == nil {
		defer func() { _ = source.Close() }()
	}
	for {
		var buffer []byte
		select {
		case buffer = <-r.free:
		case <-r.stopped:
			return
		}
		n := 0
		for err == nil && n < len(buffer) {
			var read int
			read, err = source.Read(buffer[n:])
			n += read
		}
		r.full <- chunk{buffer: buffer, n: n, err: err} // there is room for every buffer
		if err != nil {
			return
		}
	}
}

func (r *aheadReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.current.err != nil {
			return 0, r.current.err
		}
		if r.current.buffer != nil {
			r.free <- r.current.buffer
		}
		r.current = <-r.full
		r.rest = r.current.buffer[:r.current.n]
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// stop ends the goroutine and waits for its end.
func (r *aheadReader) stop() {
	close(r.stopped)
	<-r.ended
}
