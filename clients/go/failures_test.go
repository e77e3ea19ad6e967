package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
)

func TestStreamsThatCannotGoOn(t *testing.T) {
	t.Parallel()
	const begin = "id: 1\ndata: {\"type\":\"init\",\"timestamp\":1,\"text\":\"c\"}\n\n" +
		"id: 2\ndata: {\"type\":\"stdout\",\"timestamp\":1,\"text\":\"a\"}\n\n"
	for name, test := range map[string]struct {
		rest func(http.ResponseWriter, *http.Request)
		want string
	}{
		"the daemon is another one": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Request-ID", "r")
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"code":"NOT_FOUND","message":"there is no \u001b[31mcommand"}`)
		}, "status 404 NOT_FOUND: there is no ?[31mcommand (X-Request-ID r)"},
		"an event is missing": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Last-Event-ID") != "2" {
				t.Errorf("resumed after %q", r.Header.Get("Last-Event-ID"))
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "id: 4\ndata: {\"type\":\"stdout\",\"timestamp\":1,\"text\":\"c\"}\n\n")
		}, "event 4 came after event 2"},
		"no stream": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
		}, "no stream of events"},
		"a redirection": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "status 302"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("POST "+commands, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("X-Command-ID", "c")
				_, _ = fmt.Fprint(w, begin)
				check(t, http.NewResponseController(w).Flush())
				cut(w)
			})
			mux.HandleFunc("GET "+commands+"/c/stream", test.rest)
			mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) {
				t.Error("a redirection was followed")
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			result, err := box.Commands.Run(t.Context(), "true", nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || result.Stdout != "a\n" {
				t.Errorf("%+v, %v; want %q", result, err, test.want)
			}
		})
	}
}

// TestWatchIsNotResumed: its events have no ids, so it says that it was cut.
func TestWatchIsNotResumed(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+watches, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "data: {\"type\":\"ready\",\"timestamp\":1}\n\n")
		check(t, http.NewResponseController(w).Flush())
		cut(w)
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	var last error
	seen := 0
	for _, err := range box.Files.Watch(t.Context(), "/", false) {
		if seen, last = seen+1, err; err != nil {
			break
		}
	}
	var broken *sandbox.StreamError
	if seen != 2 || !errors.As(last, &broken) {
		t.Errorf("%d events, then %v", seen, last)
	}
}

// TestWatchThatTheDaemonEnds: only the removal or renaming of the path is an end.
func TestWatchThatTheDaemonEnds(t *testing.T) {
	t.Parallel()
	const ready = "data: {\"type\":\"ready\",\"timestamp\":1,\"path\":\"/srv\"}\n\n"
	for last, over := range map[string]bool{
		"": false,
		"data: {\"type\":\"remove\",\"timestamp\":1,\"path\":\"/srv/a\"}\n\n": false,
		"data: {\"type\":\"remove\",\"timestamp\":1,\"path\":\"/srv\"}\n\n":   true,
		"data: {\"type\":\"rename\",\"timestamp\":1,\"path\":\"/srv\"}\n\n":   true,
		"data: {\"type\":\"error\",\"timestamp\":1,\"message\":\"x\"}\n\n":    true,
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET "+watches, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, ready+last)
		})
		box, err := scripted(t, mux).Connect(t.Context(), "box")
		check(t, err)
		err = nil
		for _, failure := range box.Files.Watch(t.Context(), "srv", false) {
			err = failure
		}
		var broken *sandbox.StreamError
		if over && err != nil || !over && !errors.As(err, &broken) {
			t.Errorf("after %q: %v", last, err)
		}
	}
}

// TestEventBeyondTheBound: it would be as large each time, so the stream is not opened again.
func TestEventBeyondTheBound(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+commands, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Command-ID", "c")
		_, _ = fmt.Fprint(w, "id: 1\ndata: {\"type\":\"init\",\"timestamp\":1,\"text\":\"c\"}\n\n")
		_, _ = fmt.Fprintf(w, "id: 2\ndata: {\"type\":\"stdout\",\"timestamp\":1,\"text\":%q}\n\n",
			strings.Repeat("x", 1<<20))
	})
	mux.HandleFunc("GET "+commands+"/c/stream", func(http.ResponseWriter, *http.Request) { opened.Add(1) })
	box, err := scriptedIn(t, "Running", mux, sandbox.Options{MaxAnswer: 64 << 10}).Connect(t.Context(), "box")
	check(t, err)
	_, err = box.Commands.Run(t.Context(), "true", nil)
	if err == nil || !strings.Contains(err.Error(), "cannot be followed") ||
		!strings.Contains(err.Error(), "more than 65536 bytes") || opened.Load() != 0 {
		t.Errorf("%v after %d more connections", err, opened.Load())
	}
}

// TestDownloadWhileTheServiceRestarts: it goes on for as long as other streams would.
func TestDownloadWhileTheServiceRestarts(t *testing.T) {
	t.Parallel()
	const content = "0123456789"
	var requests atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/box/proxy/44772/files/download", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		switch n := requests.Add(1); {
		case n == 1:
			w.Header().Set("Content-Length", "10")
			_, _ = fmt.Fprint(w, content[:4])
			check(t, http.NewResponseController(w).Flush())
			cut(w)
		case n <= 7:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			if got := r.Header.Get("Range"); got != "bytes=4-9" {
				t.Errorf("range %q", got)
			}
			w.Header().Set("Content-Range", "bytes 4-9/10")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = fmt.Fprint(w, content[4:])
		}
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	if got, err := box.Files.ReadText(t.Context(), "/a"); err != nil || got != content {
		t.Errorf("%q, %v after %d requests", got, err, requests.Load())
	}
}

// TestTimeLimitsOfOthers: a connection that takes too long is a failure like others; only the
// caller's own limit ends a request.
func TestTimeLimitsOfOthers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, scriptedBox)
	}))
	t.Cleanup(server.Close)
	var dials atomic.Int32
	transport := &http.Transport{DisableKeepAlives: true}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) < 3 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: context.DeadlineExceeded}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	client := dial(t, sandbox.Options{URL: server.URL, HTTPClient: &http.Client{Transport: transport, Timeout: patience}})
	if _, err := client.Get(t.Context(), "box"); err != nil {
		t.Errorf("%v after %d connections", err, dials.Load())
	}
	dials.Store(0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Get(ended, "box"); !errors.Is(err, context.Canceled) || dials.Load() > 1 {
		t.Errorf("%v after %d connections", err, dials.Load())
	}
}

// TestWriteThatIsGivenUp: what was sent of it is not taken for the bytes of the next one.
func TestWriteThatIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, takes := range []int{0, 2, 6} { // bytes, before the client gives up
		var mu sync.Mutex
		text, hangs, closed := "", true, false
		mux := http.NewServeMux()
		mux.HandleFunc("POST "+commands, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, `{"id":"c"}`)
		})
		mux.HandleFunc("POST "+commands+"/c/stdin", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
			mu.Lock()
			defer mu.Unlock()
			room := 4 // of a small pipe
			if hangs {
				room = takes - len(text)
			}
			body = body[:min(len(body), len(text)-offset+room)]
			text += string(body[min(len(body), len(text)-offset):])
			if hangs {
				cut(w)
			}
			closed = r.URL.Query().Get("end") != ""
			_, _ = fmt.Fprintf(w, `{"offset":%d,"closed":%t}`, len(text), closed)
		})
		box, err := scriptedIn(t, "Running", mux, sandbox.Options{ResumeLimit: time.Millisecond}).Connect(t.Context(), "box")
		check(t, err)
		command, err := box.Commands.Start(t.Context(), "cat", &sandbox.RunOptions{OpenStdin: true})
		check(t, err)
		stdin, broken := command.Stdin(t.Context()), (*sandbox.StreamError)(nil)
		first := []byte("first\n")
		if n, err := stdin.Write(first); n != len(first) || !errors.As(err, &broken) {
			t.Errorf("%d bytes were written: %v", n, err)
		}
		clear(first)
		mu.Lock()
		hangs = false
		mu.Unlock()
		n, err := stdin.Write([]byte("other\n"))
		check(t, err)
		check(t, stdin.Close())
		mu.Lock()
		defer mu.Unlock()
		if n != len("other\n") || text != "first\nother\n" || !closed {
			t.Errorf("after %d bytes were taken the command has %q, closed %t", takes, text, closed)
		}
	}
}

// TestResumeThatFails: a sandbox that could not be started again after a reboot of its host is not
// waited for.
func TestResumeThatFails(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes/box/resume", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	const paused = `Paused","reason":"RESUME_FAILED","message":"the image is gone","lastTransitionAt":"2026-01-02T15:04:05Z"},"x":{"y":"`
	box, err := scriptedIn(t, paused, mux, sandbox.Options{}).Connect(t.Context(), "box")
	check(t, err)
	var failed *sandbox.StateError
	if err := box.Resume(limited(t)); !errors.As(err, &failed) || failed.State != sandbox.Paused || failed.Reason != "RESUME_FAILED" {
		t.Errorf("resume: %v", err)
	}
}
