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

// These tests are about failures that a real service does not produce on demand: a scripted one
// stands in for it.

const scriptedBox = `{"id":"box","image":{"uri":"x"},"metadata":{},"entrypoint":["x"],
	"status":{"state":"Running","reason":"","message":"","lastTransitionAt":"2026-01-02T15:04:05Z"},
	"expiresAt":"2026-01-02T15:04:05Z","createdAt":"2026-01-02T15:04:05Z"}`

// commands and watches are paths of that sandbox.
const (
	commands = "/v1/sandboxes/box/proxy/44772/command"
	watches  = "/v1/sandboxes/box/proxy/44772/files/watch"
)

// scripted returns a client of a service with one sandbox, whose other paths are those of mux.
func scripted(t *testing.T, mux *http.ServeMux) *sandbox.Client {
	t.Helper()
	return scriptedIn(t, "Running", mux, sandbox.Options{})
}

// scriptedIn is scripted with a sandbox in another state, or other options.
func scriptedIn(t *testing.T, state string, mux *http.ServeMux, options sandbox.Options) *sandbox.Client {
	t.Helper()
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, strings.Replace(scriptedBox, "Running", state, 1))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	options.URL = server.URL
	return dial(t, options)
}

// cut ends a connection in the middle of an answer.
func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func TestCreateIsRepeatedWithItsKey(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch len(keys) {
		case 1: // it may have been made
			cut(w)
		case 2:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.WriteHeader(http.StatusAccepted)
			_, _ = fmt.Fprint(w, scriptedBox)
		}
	})
	box, err := scripted(t, mux).Create(t.Context(), &sandbox.CreateOptions{Image: "x"})
	check(t, err)
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[0] != keys[2] ||
		box.ID() != "box" {
		t.Errorf("keys %q", keys)
	}
}

// TestCommandsAreRepeatedWithTheirKey: whether a command whose answer was cut has started is not
// known, and its key has the daemon start it once.
func TestCommandsAreRepeatedWithTheirKey(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+commands, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) < 3 {
			cut(w)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"id":"c"}`)
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	command, err := box.Commands.Start(t.Context(), "true", nil)
	check(t, err)
	mu.Lock()
	defer mu.Unlock()
	if command.ID != "c" || keys[0] == "" || keys[0] != keys[1] || keys[0] != keys[2] {
		t.Errorf("keys %q", keys)
	}
}

// TestStartsThatAreGivenUp: whoever gives one up before its answer does not have the id, so what
// was started is found by its key and interrupted.
func TestStartsThatAreGivenUp(t *testing.T) {
	t.Parallel()
	const prefix = "/v1/sandboxes/box/proxy/44772"
	for name, test := range map[string]struct {
		path string
		do   func(context.Context, *sandbox.Sandbox) error
	}{
		"run": {"/command", func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Commands.Run(ctx, "true", nil)
			return err
		}},
		"start": {"/command", func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Commands.Start(ctx, "true", nil)
			return err
		}},
		"code": {"/code", func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Code.Run(ctx, "1", nil)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var mu sync.Mutex
			var asked, keys, ages []string
			mux := http.NewServeMux()
			mux.HandleFunc(prefix+test.path, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is noticed
				mu.Lock()
				asked = append(asked, r.Method+" "+r.URL.RawQuery)
				posts := len(keys)
				if r.Method == http.MethodPost {
					keys = append(keys, r.Header.Get("Idempotency-Key"))
					ages = append(ages, r.Header.Get("Idempotency-Age"))
				}
				mu.Unlock()
				switch {
				case r.Method == http.MethodDelete:
					_, _ = fmt.Fprint(w, "{}")
				case posts == 0:
					cancel()
					<-r.Context().Done()
				default:
					w.Header().Set("Content-Type", "text/event-stream")
					w.Header().Set("X-Command-ID", "c")
					w.Header().Set("X-Execution-ID", "c")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done() // it runs on
				}
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			if err := test.do(ctx, box); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Join(asked, ", ") != "POST , POST , DELETE id=c" {
				t.Fatalf("the service was asked for %q", asked)
			}
			if keys[0] == "" || keys[0] != keys[1] || ages[0] != "" || ages[1] == "" {
				t.Errorf("keys %q, ages %q", keys, ages)
			}
			// One that never began is nothing to take back.
			if err := test.do(ctx, box); !errors.Is(err, context.Canceled) || len(asked) != 3 {
				t.Errorf("%v, and it was asked for %q", err, asked)
			}
		})
	}
}

// TestRepetitionsSayTheirAge: from the first attempt on that may have arrived, whatever sends it
// again. The daemon's refusal of one is the error.
func TestRepetitionsSayTheirAge(t *testing.T) {
	t.Parallel()
	const prefix = "/v1/sandboxes/box/proxy/44772"
	for path, do := range map[string]func(context.Context, *sandbox.Sandbox) error{
		"/command": func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Commands.Start(ctx, "true", nil)
			return err
		},
		"/command ": func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Commands.Run(ctx, "true", nil)
			return err
		},
		"/code": func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Code.Run(ctx, "1", nil)
			return err
		},
		"/code/context": func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Code.CreateContext(ctx, "python")
			return err
		},
		"/pty": func(ctx context.Context, box *sandbox.Sandbox) error {
			_, err := box.Terminals.Create(ctx, nil)
			return err
		},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var ages []string
			var begin time.Time // of the first attempt that may have arrived
			mux := http.NewServeMux()
			mux.HandleFunc("POST "+prefix+strings.TrimSpace(path), func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if ages = append(ages, r.Header.Get("Idempotency-Age")); r.Header.Get("Idempotency-Key") == "" {
					t.Error("a request has no key")
				}
				switch len(ages) {
				case 1:
					w.WriteHeader(http.StatusTooManyRequests)
				case 2: // on a connection that was used before
					begin = time.Now()
					cut(w)
				case 3:
					w.WriteHeader(http.StatusBadGateway)
				default:
					w.WriteHeader(http.StatusConflict)
					_, _ = fmt.Fprint(w, `{"code":"CONFLICT","message":"execd was started again"}`)
				}
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			if err := do(t.Context(), box); !errors.Is(err, sandbox.ErrConflict) {
				t.Errorf("the error is %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(ages) != 4 || ages[0] != "" || ages[1] != "" {
				t.Fatalf("ages %q", ages)
			}
			third, _ := strconv.Atoi(ages[2])
			fourth, _ := strconv.Atoi(ages[3])
			// Between them were pauses of 200 and 400 ms.
			if longest := int(time.Since(begin).Milliseconds()) + 1000; third < 200 || fourth < third+400 || fourth > longest {
				t.Errorf("ages %q, of at most %d ms", ages, longest)
			}
		})
	}
}

// TestWithoutAConnectionThereIsNoAge: what could not be sent has not arrived.
func TestWithoutAConnectionThereIsNoAge(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var ages []string
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+commands, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		ages = append(ages, r.Header.Get("Idempotency-Age"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"id":"c"}`)
	})
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, scriptedBox)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	refused := 0
	transport := &http.Transport{DisableKeepAlives: true}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if refused++; refused == 2 || refused == 3 { // the first one is of Connect
			address = "127.0.0.1:1"
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	client := dial(t, sandbox.Options{URL: server.URL, HTTPClient: &http.Client{Transport: transport}})
	box, err := client.Connect(t.Context(), "box")
	check(t, err)
	_, err = box.Commands.Start(t.Context(), "true", nil)
	check(t, err)
	mu.Lock()
	defer mu.Unlock()
	if refused != 4 || len(ages) != 1 || ages[0] != "" {
		t.Errorf("%d connections, ages %q", refused, ages)
	}
}

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

// TestCreateThatIsBrokenOff: the sandbox was made, so it is returned and can be deleted.
func TestCreateThatIsBrokenOff(t *testing.T) {
	t.Parallel()
	arrived, cause := make(chan struct{}), errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Prefer") != "" {
			t.Error("the request waits")
		}
		close(arrived)
		<-ctx.Done()
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprint(w, strings.Replace(scriptedBox, "Running", "Pending", 1))
	})
	client := scripted(t, mux)
	go func() {
		<-arrived
		cancel(cause)
	}()
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: "x"})
	if !errors.Is(err, cause) || box == nil || box.ID() != "box" {
		t.Errorf("%v, %v", box, err)
	}
	if _, err := client.Create(ctx, &sandbox.CreateOptions{Image: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a create whose context has ended: %v", err)
	}
}

// TestDeleteWhoseAnswerIsLost: that the sandbox is gone afterwards is what was asked for, but a
// proxy's page does not say so.
func TestDeleteWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	const gone = `{"code":"SANDBOX_NOT_FOUND","message":"gone"}`
	for name, test := range map[string]struct {
		lost   int32
		answer string
		want   error
	}{
		"gone since":       {1, gone, nil},
		"gone before":      {0, gone, sandbox.ErrNotFound},
		"a page of errors": {1, "<p>", sandbox.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			mux := http.NewServeMux()
			mux.HandleFunc("DELETE /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) <= test.lost {
					cut(w)
				}
				w.WriteHeader(http.StatusNotFound)
				_, _ = fmt.Fprint(w, test.answer)
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			if err := box.Delete(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// TestLogThatIsNotKept: the connection ended with the service, and what the sandbox printed until
// its own end is more than is kept. That is a loss, whatever its last lines look like.
func TestLogThatIsNotKept(t *testing.T) {
	t.Parallel()
	const line = "tick\n"
	for _, begin := range []string{"", line, line + line + line} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("follow") != "" {
				_, _ = fmt.Fprint(w, begin)
				return
			}
			_, _ = fmt.Fprint(w, strings.Repeat(line, 1000))
		})
		box, err := scriptedIn(t, "Terminated", mux, sandbox.Options{}).Connect(t.Context(), "box")
		check(t, err)
		log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: true})
		check(t, err)
		got, err := io.ReadAll(log)
		check(t, log.Close())
		var broken *sandbox.StreamError
		if string(got) != begin || !errors.As(err, &broken) {
			t.Errorf("after %q: %q, %v", begin, got, err)
		}
	}
}

// TestLogThatIsCut: what had arrived is compared with what comes again, so that a log whose
// beginning the engine has forgotten is an error and not a gap.
func TestLogThatIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("one line of many\n", 20_000) // more than is compared
	for name, test := range map[string]struct {
		follow      bool
		connections []string // all but the last are cut
		want        string
		lost        bool
	}{
		"followed":           {true, []string{"one\ntwo\n", "two\nthree\nfour\n"}, "one\ntwo\n", true},
		"resumed":            {false, []string{"one\n", "one\ntwo\n", "one\ntwo\nend\n"}, "one\ntwo\nend\n", false},
		"forgotten":          {false, []string{"one\ntwo\n", "two\nthree\nfour\n"}, "one\ntwo\n", true},
		"long":               {false, []string{long, long + "end\n"}, long + "end\n", false},
		"long and forgotten": {false, []string{long + "a\n", long + "b\nc\nend\n"}, long + "a\n", true},
		"shorter":            {false, []string{"one\ntwo\n", "two\n"}, "one\ntwo\n", true},
		"nothing is left":    {false, []string{"one\ntwo\n", ""}, "one\ntwo\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, _ *http.Request) {
				at := int(requests.Add(1))
				if at > len(test.connections) {
					t.Error("the log was asked for once more")
					w.WriteHeader(http.StatusBadRequest)
					return
				}
				_, _ = fmt.Fprint(w, test.connections[at-1])
				_ = http.NewResponseController(w).Flush() // fails when the client has seen another log and gone
				if at < len(test.connections) {
					cut(w)
				}
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: test.follow})
			check(t, err)
			defer func() { check(t, log.Close()) }()
			got, err := io.ReadAll(log)
			if string(got) != test.want {
				t.Errorf("%d bytes which end with %q, want %d", len(got), end(got), len(test.want))
			}
			var broken *sandbox.StreamError
			if test.lost != errors.As(err, &broken) || !test.lost && err != nil {
				t.Errorf("%v; lost: %v", err, test.lost)
			}
			if n, again := log.Read(make([]byte, 10)); n != 0 || test.lost && !errors.Is(again, err) {
				t.Errorf("after the end: %d bytes, %v", n, again)
			}
		})
	}
}

// end is the end of a text.
func end(text []byte) []byte { return text[max(0, len(text)-20):] }

// TestEndOfALongLog: a cluster keeps the whole log of an ended sandbox, however long it is.
func TestEndOfALongLog(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, r *http.Request) {
		lines := strings.SplitAfter(all.String(), "\n")
		if tail, err := strconv.Atoi(r.URL.Query().Get("tail")); err == nil {
			lines = lines[len(lines)-1-tail:]
		}
		_, _ = fmt.Fprint(w, strings.Join(lines, ""))
	})
	box, err := scriptedIn(t, "Terminated", mux, sandbox.Options{}).Connect(t.Context(), "box")
	check(t, err)
	log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: true})
	check(t, err)
	got, err := io.ReadAll(log)
	check(t, log.Close())
	if err != nil || string(got) != all.String() {
		t.Errorf("%d bytes of %d, %v", len(got), all.Len(), err)
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
	client := dial(t, sandbox.Options{URL: server.URL, HTTPClient: &http.Client{Transport: transport}})
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

// TestLogsSayWhatIsMissing: output beyond the limit is not in a log, which says so.
func TestLogsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	dropped := ""
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+commands+"/status/c", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"id":"c","running":false}`)
	})
	mux.HandleFunc("GET "+commands+"/c/logs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", "1")
		if dropped != "" {
			w.Header().Set("EXECD-COMMANDS-DROPPED-BYTES", dropped)
		}
		_, _ = fmt.Fprint(w, "one\ntwo\n")
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	command, err := box.Commands.Connect(t.Context(), "c")
	check(t, err)
	for header, want := range map[string]int64{"": 0, "4096": 4096} {
		dropped = header
		text, end, err := command.Logs(t.Context(), -1)
		if err != nil || text != "one\ntwo\n" || end != (sandbox.LogEnd{Cursor: 1, Dropped: want}) {
			t.Errorf("%q: %q, %+v, %v", header, text, end, err)
		}
	}
	dropped = "many"
	if text, _, err := command.Logs(t.Context(), -1); err == nil || text != "" {
		t.Errorf("without a number: %q, %v", text, err)
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
