package jupyter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// frame returns a frame that announces a size and has that body.
func frame(flags byte, size uint64, body string) string {
	return string(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)) + body
}

func TestReadMessage(t *testing.T) {
	var own bytes.Buffer
	s := zmqSocket{writer: bufio.NewWriter(&own)}
	long := strings.Repeat("y", 300)
	if err := s.write([][]byte{[]byte("a"), nil, []byte(long)}); err != nil {
		t.Fatal(err)
	}
	good, want := own.String(), [][]byte{[]byte("a"), {}, []byte(long)}
	chunk := strings.Repeat("x", maxMessage/2)
	for name, test := range map[string]struct {
		sent    string
		dropped uint64 // of the message before the good one, 0 when there is none
		broken  bool
	}{
		"whole":            {sent: good},
		"behind a command": {sent: "\x04\x05\x04PING" + good},
		"too long": {sent: frame(0, maxMessage+1,
			strings.Repeat("x", maxMessage+1)) + good, dropped: maxMessage + 1},
		"too long in sum": {sent: strings.Repeat(frame(flagMore, maxMessage/2, chunk),
			3) + "\x00\x00" + good, dropped: maxMessage / 2 * 3},
		"too many frames": {sent: strings.Repeat("\x01\x01x", maxFrames) + "\x00\x01x" + good,
			dropped: maxFrames + 1},
		"2^62 bytes":          {sent: frame(0, 1<<62, ""), broken: true},
		"2^64 bytes":          {sent: frame(flagMore, 1<<64-1, ""), broken: true},
		"sizes that overflow": {sent: "\x01\x09123456789" + frame(0, 1<<64-1, ""), broken: true},
		"a huge command":      {sent: frame(flagCommand, 1<<40, ""), broken: true},
		"cut in a header":     {sent: frame(0, 1, "")[:5], broken: true},
		"cut in a body":       {sent: frame(0, maxMessage, "x"), broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			in := bufio.NewReader(strings.NewReader(test.sent))
			frames, err := readMessage(in)
			if test.dropped > 0 {
				oversize := (*oversizeError)(nil)
				if !errors.As(err, &oversize) || oversize.size != test.dropped {
					t.Fatalf("the first message: %v", err)
				}
				frames, err = readMessage(in)
			}
			if test.broken {
				if err == nil {
					t.Fatalf("%d frames came", len(frames))
				}
				return
			}
			if err != nil || !reflect.DeepEqual(frames, want) {
				t.Errorf("%.20q, %v", frames, err)
			}
		})
	}
}

// What is announced costs nothing before it comes.
func TestReadMessageAllocatesWhatComes(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readMessage(bufio.NewReader(strings.NewReader(frame(0, maxMessage,
		"x")))); err == nil {
		t.Error("a message that does not come is there")
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes were allocated for a frame of which one came", grown)
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte("\x04\x05\x04PING\x01\x01a\x00\x00"))
	f.Add([]byte(frame(0, 1<<62, "x")))
	f.Fuzz(func(_ *testing.T, sent []byte) {
		in := bufio.NewReader(bytes.NewReader(sent))
		for oversize := (*oversizeError)(nil); ; {
			if _, err := readMessage(in); err != nil && !errors.As(err, &oversize) {
				return
			}
		}
	})
}

// endless is a channel that always has more.
type endless struct{ stop chan struct{} }

func (e endless) Read(p []byte) (int, error) {
	select {
	case <-e.stop:
		return 0, io.EOF
	default:
		return len(p), nil
	}
}

func TestTheBacklogIsBounded(t *testing.T) {
	from := endless{make(chan struct{})}
	b := newBacklog()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.fill(from)
	}()
	full := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.held > backlogLimit+chunkSize {
			t.Fatalf("%d bytes wait", b.held)
		}
		return b.held > backlogLimit
	}
	for range 3 {
		for !full() {
			runtime.Gosched()
		}
		if _, err := io.CopyN(io.Discard, b, backlogLimit/2); err != nil {
			t.Fatal(err)
		}
	}
	for !full() {
		runtime.Gosched()
	}
	b.leave()
	close(from.stop)
	wait.For(t, "the end of the sender", done)
}
