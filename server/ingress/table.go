package ingress

import (
	"sync"
	"sync/atomic"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Endpoint is where the ports of a sandbox are reached.
type Endpoint struct {
	// Address is the host and port of the sandbox's daemon, and Path what comes before the port in
	// a path there: /proxy/. With an empty Path, Address is a host alone, whose ports are the
	// sandbox's own.
	Address string
	Path    string
	// Token is the sandbox's token. Clients must send it; it is sent to the daemon where there is a
	// Path.
	Token string
}

// sandbox is a row of the table.
type sandbox struct {
	id    string
	state lifecycle.State
	// asleep: a request may wake it.
	asleep bool
	// caughtUp is when the list's state began, if that was while the list was read: the stream has
	// the events that led to it, too, and older ones would undo it for a moment. Zero otherwise.
	caughtUp time.Time
	since    time.Time // when the state began; zero if that is not known

	endpoint atomic.Pointer[Endpoint] // nil until it was looked up
	located  atomic.Int64             // when it was looked up, in nanoseconds since 1970
	inFlight atomic.Int64             // requests and connections
}

// table holds the sandboxes that have not ended. It is bounded.
type table struct {
	limit int

	mu        sync.RWMutex
	sandboxes map[string]*sandbox
	listed    bool // it has been filled once
	complete  bool // it has every sandbox that has not ended
}

func newTable(limit int) *table { return &table{limit: limit, sandboxes: map[string]*sandbox{}} }

// row is a sandbox and its state at one moment.
type row struct {
	sandbox *sandbox
	state   lifecycle.State
	asleep  bool
}

// find returns the row of a sandbox, and whether the table is complete: then a sandbox that is not
// in it does not exist.
func (t *table) find(id string) (found row, complete bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s := t.sandboxes[id]; s != nil {
		return row{s, s.state, s.asleep}, t.complete
	}
	return row{}, t.complete
}

// observation is a sandbox as the service, a Source or a file reports it.
type observation struct {
	id    string
	state lifecycle.State
	// asleep: it sleeps, or was woken and does not run yet.
	asleep bool
	// onDisk: it sleeps, and will be at another address once it runs.
	onDisk bool
	// since is when it came into the state, zero if that does not matter.
	since    time.Time
	endpoint *Endpoint // nil if it has to be looked up
}

// mayWake reports whether a request may wake a sandbox with this status, or wait for it. The
// lifecycle service knows whether it does.
func mayWake(state lifecycle.State, reason string) bool {
	switch lifecycle.Reason(reason) {
	case lifecycle.ReasonIdle, lifecycle.ReasonTimeout, lifecycle.ReasonHibernated, lifecycle.ReasonHibernatedFiles:
		return state == lifecycle.StatePausing || state == lifecycle.StatePaused
	case lifecycle.ReasonWoken, lifecycle.ReasonUserResume:
		return state == lifecycle.StateResuming
	}
	return false
}

// moved forgets where a sandbox is.
func (t *table) moved(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sandboxes[id]; s != nil {
		s.endpoint.Store(nil)
	}
}

// replace replaces the table by these sandboxes. One whose state has stayed keeps its endpoint.
// From and until are when the reading of the list began and ended.
func (t *table) replace(all []observation, from, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.sandboxes
	t.sandboxes, t.listed, t.complete = make(map[string]*sandbox,
		min(len(all), t.limit)), true, true
	for _, one := range all {
		if s := before[one.id]; s != nil && !one.state.Final() {
			t.sandboxes[one.id] = s
			if !one.since.Equal(s.since) { // it may have been on the disk
				s.endpoint.Store(nil)
			}
		}
		s := t.put(one)
		if s != nil && !one.since.Before(from) && !one.since.After(until) {
			s.caughtUp = one.since
		}
	}
}

// update adds or changes a sandbox. The order of calls counts, because a clock may be set back;
// only a change from before the list was read is ignored.
func (t *table) update(one observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sandboxes[one.id]; s == nil || !one.since.Before(s.caughtUp) {
		t.put(one)
	}
}

// put applies an observation and returns its row, if any. The caller holds mu.
func (t *table) put(one observation) *sandbox {
	s := t.sandboxes[one.id]
	switch {
	case one.state.Final():
		delete(t.sandboxes, one.id)
		return nil
	case s == nil && len(t.sandboxes) >= t.limit:
		t.complete = false
		return nil
	case s == nil:
		s = &sandbox{id: one.id}
		t.sandboxes[one.id] = s
	}
	switch {
	case one.endpoint != nil:
		s.endpoint.Store(one.endpoint)
	case one.onDisk:
		s.endpoint.Store(nil)
	case one.asleep, one.state == lifecycle.StateRunning && s.asleep:
		// It stays where it is.
	case one.state != lifecycle.StateRunning, !one.since.Equal(s.since):
		// After a reboot of its host it is at another port, and another sandbox at that one.
		s.endpoint.Store(nil)
	}
	s.state, s.asleep, s.caughtUp, s.since = one.state, one.asleep, time.Time{}, one.since
	return s
}

// remove removes a sandbox.
func (t *table) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sandboxes, id)
}

// ready reports whether the table has been filled once.
func (t *table) ready() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.listed
}

// countByState counts the sandboxes by state, and reports whether the table is complete.
func (t *table) countByState() (count map[lifecycle.State]int, complete bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	count = map[lifecycle.State]int{}
	for _, s := range t.sandboxes {
		count[s.state]++
	}
	return count, t.complete
}
