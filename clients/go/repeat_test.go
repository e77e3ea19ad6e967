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
	client := dial(t, sandbox.Options{URL: server.URL, HTTPClient: &http.Client{Transport: transport, Timeout: patience}})
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
