package box_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// trafficEngine is an engine that reports packets.
type trafficEngine struct {
	id  string
	err error
}

func (h *trafficEngine) WatchTraffic(_ context.Context, id string, _ func()) (func(), error) {
	h.id = id
	return func() {}, h.err
}

// TestWatchTraffic: the container is asked for by its name, errors are of a kind to act on, and
// where packets cannot be distinguished nothing sleeps.
func TestWatchTraffic(t *testing.T) {
	h := &trafficEngine{}
	boxes := box.Unopened(box.Options{Traffic: h})
	if _, err := boxes.WatchTraffic(t.Context(), lifecycle.Record{Box: "b"}, func() {}); err != nil || h.id != "sandbox-b" {
		t.Errorf("watch of %q: %v", h.id, err)
	}
	h.err = engine.ErrNotRunning
	if _, err := boxes.WatchTraffic(t.Context(), lifecycle.Record{Box: "b"}, func() {}); !errors.Is(err, lifecycle.ErrBoxNotAlive) {
		t.Errorf("not running: %v", err)
	}
	for name, boxes := range map[string]*box.Containers{
		"no reports":         box.Unopened(box.Options{}),
		"the host's network": box.Unopened(box.Options{Traffic: h, HostNetwork: true}),
		"another machine":    box.Unopened(box.Options{Traffic: h}).With(engine.Info{Elsewhere: true}),
	} {
		var known *lifecycle.Error
		if err := boxes.SleepUnsupported(); !errors.As(err, &known) || known.Kind != lifecycle.KindUnsupported {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := boxes.WatchTraffic(t.Context(), lifecycle.Record{}, func() {}); err == nil {
			t.Errorf("%s: packets are watched", name)
		}
	}
}

// daemonOf serves what execd answers, and returns the record of its sandbox.
func daemonOf(t *testing.T, handler http.HandlerFunc) (*box.Containers, lifecycle.Record) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(lifecycle.TokenHeader) != "token" {
			t.Errorf("%s without the token", r.URL)
		}
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().(*net.TCPAddr)
	return box.Unopened(box.Options{EngineHost: address.IP.String()}), lifecycle.Record{Port: address.Port, Token: "token"}
}

// TestWatchIdle: events come as execd writes them, and what is none ends the watch or is skipped.
func TestWatchIdle(t *testing.T) {
	for name, tt := range map[string]struct {
		kind, body string
		events     string
		words      string
	}{
		"events": {
			kind:   "text/event-stream",
			body:   ": quiet\n\ndata: {\"type\":\"idle\",\"wakeAt\":\"2026-01-02T15:04:05Z\"}\n\ndata: {\"type\":\"new\"}\n\ndata: {\"type\":\"busy\",\"kind\":\"code\"}\n\n",
			events: "[{Idle:true Kind: WakeAt:2026-01-02 15:04:05 +0000 UTC} {Idle:false Kind:code WakeAt:0001-01-01 00:00:00 +0000 UTC}]",
			words:  "ended",
		},
		"no stream":     {kind: "text/html", body: "<p>", events: "[]", words: "stream of events"},
		"no JSON":       {kind: "text/event-stream", body: "data: idle\n\n", events: "[]", words: "JSON"},
		"a long event":  {kind: "text/event-stream", body: "data: {\"type\":\"idle\",\"kind\":\"" + strings.Repeat("x", 8<<10) + "\"}\n\n", events: "[]", words: "ended"},
		"a broken wish": {kind: "text/event-stream", body: "data: {\"type\":\"idle\",\"wakeAt\":\"soon\"}\n\n", events: "[]", words: "JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			boxes, record := daemonOf(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.RequestURI() != "/idle/watch?idleMilliseconds=1500" {
					t.Errorf("asked for %s", r.URL)
				}
				w.Header().Set("Content-Type", tt.kind)
				_, _ = fmt.Fprint(w, tt.body)
			})
			var events []lifecycle.IdleEvent
			err := boxes.WatchIdle(t.Context(), record, 1500*time.Millisecond, func() error { return nil },
				func(e lifecycle.IdleEvent) error { events = append(events, e); return nil })
			if got := fmt.Sprintf("%+v", append([]lifecycle.IdleEvent{}, events...)); got != tt.events || err == nil || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("events %s, %v", got, err)
			}
		})
	}
	stop := errors.New("enough")
	boxes, record := daemonOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "data: {\"type\":\"idle\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	err := boxes.WatchIdle(t.Context(), record, time.Second, func() error { return nil }, func(lifecycle.IdleEvent) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("the handler's error: %v", err)
	}
	if err := boxes.WatchIdle(t.Context(), record, time.Second, func() error { return stop }, nil); !errors.Is(err, stop) {
		t.Errorf("the error of the begin: %v", err)
	}
	for _, status := range []int{http.StatusNotFound, http.StatusFound} {
		boxes, record := daemonOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if err := boxes.WatchIdle(t.Context(), record, time.Second, nil, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestHoldsOfExecd: the list is taken as far as it is bounded.
func TestHoldsOfExecd(t *testing.T) {
	body := ""
	boxes, record := daemonOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) })
	body = `{"holds":[{"kind":"command","id":"c","since":"2026-01-02T15:04:05Z"}],"idleMilliseconds":0,"wakeAt":"2026-01-02T16:04:05Z","more":1}`
	holds, err := boxes.Holds(t.Context(), record)
	if err != nil || len(holds.Holds) != 1 || holds.Holds[0].ID != "c" || holds.WakeAt.IsZero() {
		t.Errorf("%+v, %v", holds, err)
	}
	body = `{"idleMilliseconds":-5,"holds":[` + strings.Repeat(`{"kind":"`+strings.Repeat("k", 300)+`"},`, 1500) + `{}]}`
	holds, err = boxes.Holds(t.Context(), record)
	if err != nil || len(holds.Holds) != 1000 || len(holds.Holds[0].Kind) != 256 || holds.Idle != 0 {
		t.Errorf("%d holds, idle %v, %v", len(holds.Holds), holds.Idle, err)
	}
	for _, body = range []string{"", "[]", `{"holds":1}`, `{"holds":[],"wakeAt":1}`, strings.Repeat(" ", 3<<20) + "{}"} {
		if holds, err := boxes.Holds(t.Context(), record); err == nil {
			t.Errorf("%.20q: %+v", body, holds)
		}
	}
}

// portsEngine is an engine that keeps published ports.
type portsEngine struct{ trafficEngine }

func (h *portsEngine) HoldConnections(ctx context.Context, id string, notify func()) (func(), error) {
	return h.WatchTraffic(ctx, id, notify)
}

// TestHoldConnections: the container is asked for by its name. A sandbox whose ports are those of
// another container is refused, as is any where the engine keeps none.
func TestHoldConnections(t *testing.T) {
	h := &portsEngine{}
	boxes := box.Unopened(box.Options{Ports: h})
	hold := func(boxes *box.Containers, record lifecycle.Record) error {
		record.Box = "b"
		_, err := boxes.HoldConnections(t.Context(), record, func() {})
		return err
	}
	if err := hold(boxes, lifecycle.Record{}); err != nil || h.id != "sandbox-b" {
		t.Errorf("connections to %q: %v", h.id, err)
	}
	for name, err := range map[string]error{
		"an egress sidecar":       hold(boxes, lifecycle.Record{Sidecar: &lifecycle.Sidecar{}}),
		"an engine without ports": hold(box.Unopened(box.Options{}), lifecycle.Record{}),
	} {
		var known *lifecycle.Error
		if !errors.As(err, &known) || known.Kind != lifecycle.KindUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.err = engine.ErrNotRunning
	if err := hold(boxes, lifecycle.Record{}); !errors.Is(err, lifecycle.ErrBoxNotAlive) {
		t.Errorf("not running: %v", err)
	}
}
