package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestLogs(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	// Bytes that are no text, both streams, a last line without its newline, and more when it is told to.
	const first = "one\n\xff\x00\x01\x1b[31mred\ntwo\n"
	script := `printf 'one\n\377\000\001\033[31mred\n'; sleep 1; echo two >&2; until [ -e /tmp/go ]; do sleep 0.1; done; echo three; printf end; until [ -e /tmp/stop ]; do sleep 0.1; done; exit 3`
	id := s.create(t, request(busyboxImage, "sh", "-c", script))
	path := "/v1/sandboxes/" + id + "/logs"
	logs := func(query string) string {
		t.Helper()
		got := s.send(t, http.MethodGet, path+query, "")
		if got.status != http.StatusOK || got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Fatalf("GET %s: %s %v", path+query, got, got.header)
		}
		return got.body
	}
	whole := s.followLog(t, path+"?follow=true") // from before the start
	s.await(t, id, "Running")
	eventually(t, "the first lines are there", func() bool { return logs("") == first })
	for query, want := range map[string]string{
		"?tail=1": "two\n", "?tail=2": "\xff\x00\x01\x1b[31mred\ntwo\n", "?tail=100": first, "?tail=0": "",
		"?since=2000-01-01T00:00:00Z": first, "?since=2999-01-01T00:00:00Z": "", "?follow=false&tail=1": "two\n",
	} {
		if got := logs(query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	s.pause(t, id)
	if got := logs(""); got != first {
		t.Errorf("while Paused: %q", got)
	}
	later := s.followLog(t, path+"?follow=true&tail=0")
	s.resume(t, id)
	inside := s.enter(t, id)
	inside.want(t, "touch /tmp/go", "")
	eventually(t, "the third line is there", func() bool { return logs("") == first+"three\n" })

	// A log that is followed when the service dies can be asked for again.
	whole.until("three\n")
	later.until("three\n")
	s.kill()
	s.boot(t)
	again := s.followLog(t, path+"?follow=true&tail=1")
	inside = s.enter(t, id)
	inside.want(t, "touch /tmp/stop", "")
	// The engine takes the last line, which has no newline, when its stream ends.
	const all = first + "three\nend"
	if got := again.rest(); got != "three\nend" {
		t.Errorf("the log that was followed from its last line on: %q", got)
	}
	eventually(t, "it has ended", func() bool { return s.get(t, id).Status.State == "Failed" })
	eventually(t, "its container is removed", func() bool { return len(s.containers(t)) == 0 })
	if got := logs(""); got != all {
		t.Errorf("after the end: %q", got)
	}
	if got := logs("?tail=2&follow=true"); got != "three\nend" {
		t.Errorf("the last two lines after the end: %q", got)
	}
	if got := whole.rest(); got != first+"three\n" {
		t.Errorf("the log that was followed from the start to the kill: %q", got)
	}
	if got := later.rest(); got != "three\n" {
		t.Errorf("the log that was followed from the pause on: %q", got)
	}
}

// TestLogsAreBounded has a sandbox print more than the engine may keep.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	const lines, width = 40_000, 1000 // 40 MB
	script := fmt.Sprintf(`yes %s | head -n %d; echo done; sleep 1000`, strings.Repeat("x", width-1), lines)
	id := s.running(t, request(busyboxImage, "sh", "-c", script))
	path := "/v1/sandboxes/" + id + "/logs"
	eventually(t, "everything is printed", func() bool { return s.send(t, http.MethodGet, path+"?tail=1", "").body == "done\n" })
	if size := len(s.send(t, http.MethodGet, path, "").body); size < 5<<20 || size > 21<<20 {
		t.Errorf("the engine keeps %d bytes of 40 MB, want about 20 MB", size)
	}
	s.delete(t, id)
	eventually(t, "it has ended", func() bool { return s.get(t, id).Status.State == "Terminated" })
	kept := s.send(t, http.MethodGet, path, "").body
	if len(kept) == 0 || len(kept) > 64<<10 || !strings.HasSuffix(kept, "x\ndone\n") {
		t.Errorf("%d bytes are kept of the ended sandbox", len(kept))
	}
}

// logReader reads a log that is followed, in a goroutine of its own.
type logReader struct {
	t    *testing.T
	body io.ReadCloser
	more chan []byte
	done chan struct{}
	seen bytes.Buffer
}

func (c *client) followLog(t *testing.T, path string) *logReader {
	t.Helper()
	response, cancel := c.open(t, path)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, response.Status)
	}
	r := &logReader{t: t, body: response.Body, more: make(chan []byte, 1000), done: make(chan struct{})}
	t.Cleanup(func() { cancel(); <-r.done })
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

// until returns when the text has that end.
func (r *logReader) until(end string) {
	r.t.Helper()
	timeout := time.After(patience)
	for !strings.HasSuffix(r.seen.String(), end) {
		select {
		case piece, open := <-r.more:
			if !open {
				r.t.Fatalf("the log ended with %q, want %q", r.seen.String(), end)
			}
			r.seen.Write(piece)
		case <-timeout:
			r.t.Fatalf("the log is %q after %v, want the end %q", r.seen.String(), patience, end)
		}
	}
}

// rest returns the whole text once the connection has ended.
func (r *logReader) rest() string {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case piece, open := <-r.more:
			if !open {
				return r.seen.String()
			}
			r.seen.Write(piece)
		case <-timeout:
			r.t.Fatalf("the log did not end within %v: %q", patience, r.seen.String())
		}
	}
}
