package ingress

import (
	"sync"
	"sync/atomic"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Place is where the ports of a sandbox are reached.
type Place struct {
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
	since time.Time // when it came into the state, zero if not known

	place    atomic.Pointer[Place] // nil until it was looked up
	located  atomic.Int64          // when it was looked up, in nanoseconds since 1970
	inFlight atomic.Int64          // requests and connections
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
}

// find returns the row of a sandbox, and whether the table is complete: then a sandbox that is not
// in it does not exist.
func (t *table) find(id string) (found row, complete bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s := t.sandboxes[id]; s != nil {
		return row{s, s.state}, t.complete
	}
	return row{}, t.complete
}

// observation is a sandbox as the service, a Source or a file reports it.
type observation struct {
	id    string
	state lifecycle.State
	since time.Time
	place *Place // nil if it has to be looked up
}

// replace replaces the table by these sandboxes. One that stays keeps its place.
func (t *table) replace(all []observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.sandboxes
	t.sandboxes, t.listed, t.complete = make(map[string]*sandbox,
		min(len(all), t.limit)), true, true
	for _, one := range all {
		if s := before[one.id]; s != nil && !one.state.Final() {
			t.sandboxes[one.id] = s
		}
		t.put(one)
	}
}

// update adds or changes a sandbox. A change that is older than the table's is ignored.
func (t *table) update(one observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(one)
}

// put applies an observation. The caller holds mu.
func (t *table) put(one observation) {
	s := t.sandboxes[one.id]
	switch {
	case s != nil && one.since.Before(s.since):
		return
	case one.state.Final():
		delete(t.sandboxes, one.id)
		return
	case s == nil && len(t.sandboxes) >= t.limit:
		t.complete = false
		return
	case s == nil:
		s = &sandbox{id: one.id}
		t.sandboxes[one.id] = s
	}
	s.state, s.since = one.state, one.since
	if one.place != nil {
		s.place.Store(one.place)
	}
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
