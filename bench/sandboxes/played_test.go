package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// inMemory sends requests to a handler without a connection, so that a test can have a clock of its
// own.
type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(request *http.Request) (*http.Response, error) {
	body, written := io.Pipe()
	answer := &piped{PipeWriter: written, header: make(http.Header), begun: make(chan int, 1)}
	stop := context.AfterFunc(request.Context(),
		func() { written.CloseWithError(request.Context().Err()) })
	go func() {
		m.ServeHTTP(answer, request)
		answer.WriteHeader(http.StatusOK)
		written.Close()
		stop()
	}()
	select {
	case status := <-answer.begun:
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: body,
			Header: answer.header, Request: request}, nil
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}
}

// piped is an answer that is read while it is written.
type piped struct {
	*io.PipeWriter
	header http.Header
	begun  chan int // the status, once
	once   sync.Once
}

func (p *piped) Header() http.Header { return p.header }

func (p *piped) WriteHeader(status int) { p.once.Do(func() { p.begun <- status }) }

func (p *piped) Write(data []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.PipeWriter.Write(data)
}

// played has sandboxes of a service, and containers of an engine, that take no time.
type played struct {
	starts time.Duration // what a container of the engine takes
	fails  int           // the number of the sandbox that fails, from 1; 0 is none
	mute   bool          // no end is reported

	mutex     sync.Mutex
	states    map[string]string
	followers []chan string
}

// serve returns clients of both. They end with the test.
func (p *played) serve() (*rig.Service, *rig.Engine) {
	p.states = make(map[string]string)
	sandboxes, containers := http.NewServeMux(), http.NewServeMux()
	sandboxes.HandleFunc("POST /v1/sandboxes", p.create)
	sandboxes.HandleFunc("GET /v1/sandboxes/{id}", p.get)
	sandboxes.HandleFunc("DELETE /v1/sandboxes/{id}", p.remove)
	sandboxes.HandleFunc("GET /v1/events", p.follow)
	containers.HandleFunc("POST /v1.41/containers/create",
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"Id":"c"}`) })
	containers.HandleFunc("POST /v1.41/containers/c/start",
		func(http.ResponseWriter, *http.Request) { time.Sleep(max(p.starts, time.Millisecond)) })
	containers.HandleFunc("DELETE /v1.41/containers/c", func(http.ResponseWriter, *http.Request) {})
	containers.HandleFunc("GET /v1.41/containers/json",
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "[]") })
	return &rig.Service{Process: &rig.Process{URL: "http://service",
			Client: &http.Client{Transport: inMemory{sandboxes}}}},
		&rig.Engine{URL: "http://engine/v1.41", Client: &http.Client{Transport: inMemory{containers}}}
}

func (p *played) create(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Timeout time.Duration }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	time.Sleep(time.Millisecond)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	id, state, life := fmt.Sprintf("s%d", len(p.states)), "Running", asked.Timeout*time.Second
	if len(p.states)+1 == p.fails {
		state = "Failed"
	}
	p.change(id, "Pending")
	p.change(id, state)
	if state == "Running" && !p.mute {
		time.AfterFunc(life, func() {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.change(id, "Terminated")
		})
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, `{"id":%q,"expiresAt":%q}`, id, time.Now().Add(life).Format(time.RFC3339Nano))
}

// change needs the mutex.
func (p *played) change(id, to string) {
	p.states[id] = to
	for _, follower := range p.followers {
		follower <- fmt.Sprintf("data: {\"type\":\"state\",\"sandboxId\":%q,\"to\":%q}\n\n", id, to)
	}
}

func (p *played) get(w http.ResponseWriter, r *http.Request) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Fprintf(w, `{"status":{"state":%q,"message":"as it was asked"}}`, p.states[r.PathValue("id")])
}

func (p *played) remove(w http.ResponseWriter, r *http.Request) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if id := r.PathValue("id"); p.states[id] == "Running" {
		p.change(id, "Terminated")
	}
	w.WriteHeader(http.StatusNoContent)
}

func (p *played) follow(w http.ResponseWriter, r *http.Request) {
	events := make(chan string, 1000)
	p.mutex.Lock()
	p.followers = append(p.followers, events)
	p.mutex.Unlock()
	w.WriteHeader(http.StatusOK)
	for {
		select {
		case event := <-events:
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// TestFirstExpiry: the row ends with figures of sandboxes that ran, or with an error, whatever the
// sandboxes and the engine do.
func TestFirstExpiry(t *testing.T) {
	for name, tc := range map[string]struct {
		played *played
		lost   bool
		ok     bool
	}{
		"each runs and ends":      {&played{}, false, true},
		"one fails":               {&played{fails: 2}, true, false},
		"no end is reported":      {&played{mute: true}, true, false},
		"the engine is very slow": {&played{starts: 25 * time.Second}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, engine := tc.played.serve()
				measured, err := measureFirstExpiry(ctx, &measure.Run{Scale: measure.ScaleQuick}, rig.Beside{Service: s, Engine: engine})
				if (err == nil) != tc.ok || errors.Is(err, measure.ErrLost) != tc.lost {
					t.Errorf("error: %v", err)
				}
				if ours := measured.Ours; tc.ok && len(ours.Values) != 3 {
					t.Errorf("%+v", ours)
				}
			})
		})
	}
}

// TestLocalCrowdWithAFailure: a sandbox that fails is a round that failed, and the end of nothing.
func TestLocalCrowdWithAFailure(t *testing.T) {
	for fails, want := range map[int]float64{0: 1, 7: 0} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, engine := (&played{fails: fails}).serve()
			measured, err := measureLocalCrowd(ctx, &measure.Run{Scale: measure.ScaleQuick}, rig.Beside{Service: s, Engine: engine})
			if got := measured.Ours; err != nil || got.Attempts != 1 ||
				got.Success() != want {
				t.Errorf("with failure %d: %+v: %v", fails, got, err)
			}
		})
	}
}
