package conformance

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// LogReader reads a log that is followed, in a goroutine of its own.
type LogReader struct {
	t    *testing.T
	body io.ReadCloser
	more chan []byte
	done chan struct{}
	seen bytes.Buffer
}

// FollowLog opens a log, which must be answered with 200.
func (c *Client) FollowLog(t *testing.T, path string) *LogReader {
	t.Helper()
	response, cancel := c.openEndless(t, path)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, response.Status)
	}
	r := &LogReader{t: t, body: response.Body, more: make(chan []byte, 1000),
		done: make(chan struct{})}
	t.Cleanup(func() { cancel(); wait.For(t, "the end of the reader", r.done) })
	go func() {
		defer close(r.done)
		defer close(r.more)
		reader := bufio.NewReader(response.Body)
		for {
			piece := make([]byte, 4096)
			n, err := reader.Read(piece)
			if n > 0 {
				r.more <- piece[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	return r
}

// Until returns when the text has that part.
func (r *LogReader) Until(part string) {
	r.t.Helper()
	timeout := time.After(wait.Patience())
	for !strings.Contains(r.seen.String(), part) {
		select {
		case piece, open := <-r.more:
			if !open {
				r.t.Fatalf("the log ended with %q, want %q", r.seen.String(), part)
			}
			r.seen.Write(piece)
		case <-timeout:
			r.t.Fatalf("the log is %q after %v, want %q", r.seen.String(), wait.Patience(), part)
		}
	}
}

// Rest returns the whole text once the connection has ended.
func (r *LogReader) Rest() string {
	r.t.Helper()
	timeout := time.After(wait.Patience())
	for {
		select {
		case piece, open := <-r.more:
			if !open {
				return r.seen.String()
			}
			r.seen.Write(piece)
		case <-timeout:
			r.t.Fatalf("the log did not end within %v: %q", wait.Patience(), r.seen.String())
		}
	}
}
