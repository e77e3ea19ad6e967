package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/runtime/engine"
)

const (
	callWatchTraffic    = "WatchTraffic"
	callHoldConnections = "HoldConnections"
)

var (
	_ engine.Traffic = (*memoryEngine)(nil)
	_ engine.Ports   = (*memoryEngine)(nil)
)

// memoryRest is what execd in a container counts, and who hears packets to the container. The lock
// is the engine's.
type memoryRest struct {
	holds         int
	frozen        int       // how often the container was frozen
	since         time.Time // of the end of the last hold
	wakeAt        time.Time
	streams       map[*memoryStream]bool
	packetWatches map[*func()]bool
	portHolds     map[*func()]bool // of connections to published ports
	// older makes execd know no idle stream, as of an earlier release.
	older bool
	// idleAtOnce makes the stream report idleness at once.
	idleAtOnce bool
}

type memoryStream struct {
	w     http.ResponseWriter
	idle  time.Duration
	began time.Time
	said  bool // idle
	cut   context.CancelFunc
}

// write writes an event to the stream.
func (s *memoryStream) write(event map[string]any) {
	data, _ := json.Marshal(event)
	fmt.Fprintf(s.w, "data: %s\n\n", data)
	_ = http.NewResponseController(s.w).Flush() // a service that is gone needs nothing
}

// restOf returns the rest of a container. The caller holds the lock.
func (e *memoryEngine) restOf(name string) *memoryRest {
	if e.rests[name] == nil {
		e.rests[name] = &memoryRest{streams: map[*memoryStream]bool{}, packetWatches: map[*func()]bool{}, portHolds: map[*func()]bool{}, since: time.Now()}
	}
	return e.rests[name]
}

// changeRest changes the rest of a container.
func (e *memoryEngine) changeRest(name string, change func(*memoryRest)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e.restOf(name))
}

// runs reports whether the processes in the container run. The caller holds the lock.
func (e *memoryEngine) runs(name string) bool {
	c := e.containers[name]
	return c != nil && c.Status == engine.StatusRunning
}

func (e *memoryEngine) WatchTraffic(ctx context.Context, id string, notify func()) (stop func(), err error) {
	err = e.around(ctx, callWatchTraffic, id, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		if c.Status != engine.StatusRunning && c.Status != engine.StatusFrozen {
			return engine.ErrNotRunning
		}
		rest := e.restOf(c.Name)
		rest.packetWatches[&notify] = true
		stop = func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(rest.packetWatches, &notify)
		}
		return nil
	})
	return stop, err
}

func (e *memoryEngine) HoldConnections(ctx context.Context, id string, notify func()) (release func(), err error) {
	err = e.around(ctx, callHoldConnections, id, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		if c.Status != engine.StatusRunning && c.Status != engine.StatusFrozen && c.Status != engine.StatusStopped {
			return engine.ErrNotRunning
		}
		rest := e.restOf(c.Name)
		if len(rest.portHolds) > 0 {
			e.t.Errorf("connections to %s are held twice", c.Name)
		}
		rest.portHolds[&notify] = true
		release = func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(rest.portHolds, &notify)
		}
		return nil
	})
	return release, err
}

// connect is a connection to a published port of a container; it returns false where no such
// connection waits.
func (e *memoryEngine) connect(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	holds := e.restOf(name).portHolds
	for notify := range holds {
		(*notify)()
	}
	return len(holds) > 0
}

// portHolds returns how often connections to a container are held.
func (e *memoryEngine) portHolds(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.restOf(name).portHolds)
}

// packet is one to the container, which may be frozen.
func (e *memoryEngine) packet(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for watch := range e.restOf(name).packetWatches {
		(*watch)()
	}
}

// packetWatches returns how many watches of packets to a container there are.
func (e *memoryEngine) packetWatches(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.restOf(name).packetWatches)
}

// begin begins a hold in the container if it runs.
func (e *memoryEngine) begin(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.runs(name) {
		return false
	}
	rest := e.restOf(name)
	rest.holds++
	for stream := range rest.streams {
		if stream.said {
			stream.said = false
			stream.write(map[string]any{"type": "busy", "kind": "command"})
		}
	}
	return true
}

// end ends a hold in the container if it runs.
func (e *memoryEngine) end(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.runs(name) {
		return false
	}
	rest := e.restOf(name)
	rest.holds--
	rest.since = time.Now()
	return true
}

// cutStreams ends the idle streams of a container.
func (e *memoryEngine) cutStreams(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for stream := range e.restOf(name).streams {
		stream.cut()
	}
}

// serveRest answers the requests of the service that execd has for the rest of a sandbox. It
// returns false for others.
func (e *memoryEngine) serveRest(name string, w http.ResponseWriter, r *http.Request) bool {
	e.mu.Lock()
	rest := e.restOf(name)
	older, holds := rest.older, rest.holds
	e.mu.Unlock()
	switch {
	case r.URL.Path != "/idle/watch" && r.URL.Path != "/holds":
		return false
	case older:
		w.WriteHeader(http.StatusNotFound)
	case r.URL.Path == "/holds":
		list := []map[string]any{}
		for range holds {
			list = append(list, map[string]any{"kind": "command", "id": "one", "since": time.Unix(1, 0)})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"holds": list, "idleMilliseconds": 7})
	default:
		e.serveIdle(name, w, r)
	}
	return true
}

func (e *memoryEngine) serveIdle(name string, w http.ResponseWriter, r *http.Request) {
	milliseconds, err := strconv.Atoi(r.URL.Query().Get("idleMilliseconds"))
	if err != nil {
		e.t.Errorf("idle stream: %v", err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	ctx, cut := context.WithCancel(r.Context())
	defer cut()
	stream := &memoryStream{w: w, idle: time.Duration(milliseconds) * time.Millisecond, began: time.Now(), cut: cut}
	e.mu.Lock()
	_ = http.NewResponseController(w).Flush()
	rest := e.restOf(name)
	rest.streams[stream] = true
	e.mu.Unlock()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-e.ended:
			return
		case <-ctx.Done():
			e.mu.Lock()
			delete(rest.streams, stream)
			e.mu.Unlock()
			return
		case <-tick.C:
		}
		e.mu.Lock()
		rested := time.Since(stream.began) >= stream.idle && time.Since(rest.since) >= stream.idle
		if e.runs(name) && !stream.said && rest.holds == 0 && (rested || rest.idleAtOnce) {
			stream.said = true
			event := map[string]any{"type": "idle"}
			if !rest.wakeAt.IsZero() {
				event["wakeAt"] = rest.wakeAt
			}
			stream.write(event)
		}
		e.mu.Unlock()
	}
}
