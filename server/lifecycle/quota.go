package lifecycle

import (
	"iter"
	"sync"
)

// Quota bounds how many sandboxes that have not ended there are. Methods may be called concurrently; the zero value sets no bound.
type Quota struct {
	Total int // of all API keys together; 0 is no limit

	mu       sync.Mutex
	creating map[string]string // owners, by the id of a sandbox that may be missing in what there is
}

// Take makes room for a new sandbox among those that there are, in any state. perKey is how many sandboxes that have not ended its owner may
// have, 0 for no limit. Without room it returns an Error of KindConflict; otherwise a function that must be called once there is the sandbox,
// or there will be none.
func (q *Quota) Take(id, owner string, perKey int, sandboxes iter.Seq[*Sandbox]) (done func(), err error) {
	if q.Total == 0 && perKey == 0 {
		return func() {}, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	total, own := 0, 0
	count := func(by string) {
		total++
		if by == owner {
			own++
		}
	}
	for creating, by := range q.creating {
		if creating != id { // of a request that was repeated
			count(by)
		}
	}
	for s := range sandboxes {
		if _, counted := q.creating[s.ID]; !counted && s.ID != id && !s.Status.State.Final() {
			count(s.Owner)
		}
	}
	if perKey > 0 && own >= perKey {
		return nil, Conflictf(
			"sandboxes of API key %q that have not ended: %d, and server.keys.max_sandboxes is %d; delete one, or wait until one expires",
			owner, own, perKey)
	}
	if q.Total > 0 && total >= q.Total {
		return nil, Conflictf(
			"sandboxes that have not ended: %d, and server.max_sandboxes is %d; delete one, or wait until one expires",
			total, q.Total)
	}
	if q.creating == nil {
		q.creating = make(map[string]string)
	}
	q.creating[id] = owner
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.creating, id)
	}, nil
}
