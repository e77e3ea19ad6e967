package ingress_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"sandbox.internal/server/ingress"
	"sandbox.internal/test/wait"
)

// control is a lifecycle service as far as the ingress can see it. Its sequence of events begins at
// 100.
type control struct {
	*httptest.Server
	daemon string // where every sandbox is

	mu        sync.Mutex
	changed   chan struct{}
	sandboxes []string          // in the order of the list
	states    map[string]string // of those that have not ended
	since     map[string]time.Time
	events    []string // the data of 101, 102 and so on
	forgotten int      // how many of them the service has forgotten
	cut       chan struct{}
	down      bool
	resumed   []string // what streams asked to go on after
	lists     int
	asked     map[string]int // endpoints
	reasons   map[string]string
	woken     int
	onList    func() // called before a list is answered
}

func newControl(t *testing.T, daemon http.Handler) *control {
	t.Helper()
	server := httptest.NewServer(daemon)
	t.Cleanup(server.Close)
	c := &control{
		daemon: server.Listener.Addr().String(), changed: make(chan struct{}), cut: make(chan struct{}),
		states: map[string]string{}, since: map[string]time.Time{}, asked: map[string]int{}, reasons: map[string]string{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/events", c.stream)
	mux.HandleFunc("GET /v1/sandboxes", c.list)
	mux.HandleFunc("GET /v1/sandboxes/{id}/endpoints/44772", c.endpoint)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		down := c.down
		c.mu.Unlock()
		if r.Header.Get("SERVICE-API-KEY") != "admin" || down {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// set changes a sandbox, and sends the event unless quietly.
func (c *control) set(id, state string, quietly bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UTC()
	if _, known := c.states[id]; !known {
		c.sandboxes = append(c.sandboxes, id)
	}
	c.states[id], c.since[id] = state, now
	if state == "Terminated" {
		c.sandboxes = slices.DeleteFunc(c.sandboxes, func(other string) bool { return other == id })
		delete(c.states, id)
	}
	if !quietly {
		c.emit(fmt.Sprintf(`{"type":"state","sandboxId":%q,"timestamp":%q,"to":%q,"reason":%q}`, id, now.Format(time.RFC3339Nano), state, c.reasons[id]))
	}
}

// emit adds an event. The caller holds mu.
func (c *control) emit(data string) {
	c.events = append(c.events, data)
	close(c.changed)
	c.changed = make(chan struct{})
}

// lose ends all streams.
func (c *control) lose(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
	close(c.cut)
	c.cut = make(chan struct{})
}

func (c *control) look(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *control) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	ping := func(kind string, id int) {
		fmt.Fprintf(w, "id: %d\ndata: {\"type\":%q,\"timestamp\":%q}\n\n", id, kind, time.Now().UTC().Format(time.RFC3339Nano))
	}
	c.mu.Lock()
	after, cut := 100+len(c.events), c.cut
	last := r.Header.Get("Last-Event-ID")
	c.resumed = append(c.resumed, last)
	if last != "" {
		after, _ = strconv.Atoi(last)
	}
	if after < 100+c.forgotten {
		after = 100 + len(c.events)
		ping("reset", after)
	} else {
		ping("ping", after)
	}
	c.mu.Unlock()
	for {
		c.mu.Lock()
		if c.cut != cut { // nothing that happened since is sent
			c.mu.Unlock()
			return
		}
		for ; after < 100+len(c.events); after++ {
			fmt.Fprintf(w, "id: %d\ndata: %s\n\n", after+1, c.events[after-100])
		}
		changed := c.changed
		c.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (c *control) list(w http.ResponseWriter, r *http.Request) {
	if c.onList != nil {
		c.onList()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	size, _ := strconv.Atoi(r.URL.Query().Get("pageSize"))
	items := []any{}
	for i := (page - 1) * size; i < min(page*size, len(c.sandboxes)); i++ {
		id := c.sandboxes[i]
		items = append(items, map[string]any{"id": id, "status": map[string]any{"state": c.states[id], "reason": c.reasons[id], "lastTransitionAt": c.since[id]}})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "pagination": map[string]any{
		"page": page, "pageSize": size, "totalItems": len(c.sandboxes), "totalPages": 1, "hasNextPage": page*size < len(c.sandboxes),
	}})
}

func (c *control) endpoint(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := r.PathValue("id")
	c.asked[id]++
	if c.states[id] == "" || r.URL.Query().Get("direct") != "true" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("wake") == "true" {
		if c.states[id] != "Running" && c.reasons[id] != "IDLE" {
			w.WriteHeader(http.StatusConflict)
			return
		}
		c.states[id] = "Running"
		c.woken++
	}
	fmt.Fprintf(w, `{"endpoint":"%s/proxy/44772","url":"","headers":{"X-EXECD-ACCESS-TOKEN":%q}}`, c.daemon, token)
}

func (c *control) ingress(t *testing.T, change func(*ingress.Settings)) *running {
	t.Helper()
	return start(t, ingress.ModeHeader, func(s *ingress.Settings) {
		s.Service, s.Key = c.URL, "admin"
		if change != nil {
			change(s)
		}
	})
}

// status is the status of a request for the sandbox.
func (in *running) status(t *testing.T, id string) int {
	t.Helper()
	return do(t, in.request(t, http.MethodGet, id, 8000, "/", nil)).StatusCode
}

func TestRoutesFollowTheService(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	for i := range 2500 { // three pages
		c.set(fmt.Sprintf("box%d", i), "Running", true)
	}
	c.set("paused", "Paused", true)
	in := c.ingress(t, nil)
	wait.Until(t, "the list", func() bool { return in.admins(t, "/healthz").StatusCode == 200 })
	for id, want := range map[string]int{"box0": 200, "box2499": 200, "paused": 503, "other": 404} {
		if got := in.status(t, id); got != want {
			t.Errorf("%s: %d, want %d", id, got, want)
		}
	}
	for range 5 {
		in.status(t, "box0")
		in.status(t, "other")
	}
	c.look(func() {
		if c.lists != 3 || c.asked["box0"] != 1 || len(c.asked) != 2 {
			t.Errorf("%d lists, endpoints asked for: %v; want three pages, and one question for each sandbox that was called", c.lists, c.asked)
		}
	})
	c.set("new", "Pending", false)
	wait.Until(t, "the new one", func() bool { return in.status(t, "new") == 503 })
	c.set("new", "Running", false)
	wait.Until(t, "the new one runs", func() bool { return in.status(t, "new") == 200 })
	c.set("new", "Paused", false)
	wait.Until(t, "the new one paused", func() bool { return in.status(t, "new") == 503 })
	c.set("new", "Terminated", false)
	wait.Until(t, "the new one gone", func() bool { return in.status(t, "new") == 404 })
	c.look(func() { c.emit(`{"type":"forgotten","sandboxId":"box1","timestamp":"2026-01-02T15:04:05Z"}`) })
	wait.Until(t, "one forgotten", func() bool { return in.status(t, "box1") == 404 })
}

// TestEventsOfTheTimeOfTheList: what happened while the list was read is in the stream, too.
func TestEventsOfTheTimeOfTheList(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.set("box", "Running", true)
	c.onList = sync.OnceFunc(func() {
		c.set("box", "Paused", false)
		c.set("box", "Running", true)
		c.set("marker", "Running", false)
	})
	in := c.ingress(t, nil)
	wait.Until(t, "the marker", func() bool { return in.status(t, "marker") == 200 })
	c.set("second", "Running", false)
	wait.Until(t, "the second marker", func() bool { return in.status(t, "second") == 200 })
	if got := in.status(t, "box"); got != 200 {
		t.Errorf("an event that is older than the list made it %d", got)
	}
	c.set("box", "Paused", false)
	wait.Until(t, "the pause", func() bool { return in.status(t, "box") == 503 })
}

// TestClockOfTheServiceIsSetBack: the order of the events counts, and not their times.
func TestClockOfTheServiceIsSetBack(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.set("listed", "Running", true)
	c.look(func() { c.since["listed"] = time.Now().Add(time.Hour) }) // from before that
	in := c.ingress(t, nil)
	wait.Until(t, "the list", func() bool { return in.status(t, "listed") == 200 })
	c.set("listed", "Paused", false)
	wait.Until(t, "a change of one in the list", func() bool { return in.status(t, "listed") == 503 })
	c.set("followed", "Paused", false)
	c.look(func() {
		c.emit(`{"type":"state","sandboxId":"followed","timestamp":"2020-01-02T15:04:05Z","to":"Running"}`)
	})
	wait.Until(t, "a change of one in the stream", func() bool { return in.status(t, "followed") == 200 })
}

// TestRoutesResume: events from the time without a stream arrive afterwards, without
// another list.
func TestRoutesResume(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.set("kept", "Running", true)
	in := c.ingress(t, nil)
	wait.Until(t, "the list", func() bool { return in.status(t, "kept") == 200 })
	c.lose(true)
	c.set("kept", "Paused", false)
	c.set("new", "Running", false)
	if got := in.status(t, "kept"); got != 200 {
		t.Errorf("while the service is away: %d", got)
	}
	wait.Until(t, "several attempts", func() bool { return strings.Count(in.log.text(), "stream of events lost") >= 3 })
	c.look(func() { c.down = false })
	wait.Until(t, "what happened meanwhile", func() bool { return in.status(t, "kept") == 503 && in.status(t, "new") == 200 })
	c.look(func() {
		if c.lists != 1 || !slices.Equal(c.resumed, []string{"", "100"}) {
			t.Errorf("%d lists, streams after %q", c.lists, c.resumed)
		}
	})

	// Events that the service has forgotten: the list is read again.
	c.lose(true)
	c.set("kept", "Terminated", false)
	c.set("third", "Running", false)
	c.look(func() { c.forgotten, c.down = len(c.events), false })
	wait.Until(t, "the new list", func() bool {
		return in.status(t, "kept") == 404 && in.status(t, "third") == 200 && in.status(t, "new") == 200
	})
	c.look(func() {
		if c.lists != 2 {
			t.Errorf("%d lists", c.lists)
		}
	})
	if metrics := in.admins(t, "/metrics").body; !strings.Contains(metrics, "sandbox_ingress_sandboxes{state=\"Running\"} 2\n") || !strings.Contains(metrics, "sandbox_ingress_events_connected 1\n") {
		t.Errorf("%s", metrics)
	}
	if strings.Contains(in.log.text(), "admin\"") && strings.Contains(in.log.text(), "SERVICE-API-KEY") {
		t.Error("the log holds the key")
	}
}

func TestIngressBeforeItsService(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.look(func() { c.down = true })
	c.set("box", "Running", true)
	in := c.ingress(t, nil)
	got := do(t, in.request(t, http.MethodGet, "box", 8000, "/", nil))
	if got.wantProblem(t, 503, "ROUTES_INCOMPLETE", "box"); got.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
	}
	if health := in.admins(t, "/healthz"); health.StatusCode != 503 || !strings.Contains(health.body, "incomplete") {
		t.Errorf("%d %s", health.StatusCode, health.body)
	}
	c.look(func() { c.down = false })
	wait.Until(t, "the route", func() bool { return in.status(t, "box") == 200 })
}

func TestTableIsBounded(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	for i := range 5 {
		c.set(fmt.Sprintf("box%d", i), "Running", true)
	}
	in := c.ingress(t, func(s *ingress.Settings) { s.Sandboxes = 3 })
	wait.Until(t, "the list", func() bool { return in.status(t, "box0") == 200 })
	do(t, in.request(t, http.MethodGet, "box4", 8000, "/", nil)).wantProblem(t, 503, "ROUTES_INCOMPLETE", "box4")
	wait.Until(t, "a line in the log that says what to do", func() bool {
		return strings.Contains(in.log.text(), "--max-sandboxes")
	})
}

// TestEndpointIsAskedAgain: a sandbox whose daemon is found at another address, because the engine
// was restarted, is found there.
func TestEndpointIsAskedAgain(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	right := c.daemon
	c.daemon = loopback.Refusing(t)
	c.set("box", "Running", true)
	in := c.ingress(t, nil)
	wait.Until(t, "a daemon that is not there", func() bool { return in.status(t, "box") == 502 })
	c.look(func() { c.daemon = right })
	wait.Until(t, "the daemon at its new address", func() bool { return in.status(t, "box") == 200 })
}

// TestEndpointAfterAReboot: a sandbox that was not running meanwhile may be at another port, and
// another sandbox at its old one. Its endpoint is asked for again, whether the ingress has seen the
// events or a list only.
func TestEndpointAfterAReboot(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.set("box", "Running", true)
	in := c.ingress(t, nil)
	asked := func(times int) func() bool {
		return func() bool {
			status := in.status(t, "box")
			c.mu.Lock()
			defer c.mu.Unlock()
			return status == 200 && c.asked["box"] == times
		}
	}
	wait.Until(t, "the sandbox", asked(1))
	c.set("box", "Paused", false)
	wait.Until(t, "the sandbox paused", func() bool { return in.status(t, "box") == 503 })
	c.set("box", "Running", false)
	wait.Until(t, "its new endpoint", asked(2))
	c.lose(true)
	c.set("box", "Paused", false)
	c.set("box", "Running", false)
	c.look(func() { c.forgotten, c.down = len(c.events), false }) // a reset
	wait.Until(t, "its new endpoint after a reset", asked(3))
}
