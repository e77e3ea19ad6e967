package lifecycle

import (
	"iter"
	"sync"
)

// Quota bounds how many sandboxes that have not ended there are. Methods may be called concurrently; the zero value sets no bound.
type Quota struct {
	Total int // of all API keys together; 0 is no limit

	mu       sync.Mutex
	creating map[string]*creation // by the id of a sandbox that may be missing in what there is
}

// creation is a sandbox that is being created, by one request or by several with the same Idempotency-Key.
type creation struct {
	owner    string
	requests int
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
	for creating, c := range q.creating {
		if creating != id {
			count(c.owner)
		}
	}
	for s := range sandboxes {
		if _, counted := q.creating[s.ID]; !counted && s.ID != id && !s.Status.State.Final() {
			count(s.Owner)
		}
	}
	return q.take(id, owner, perKey, total, own)
}

// Living counts the sandboxes that there are.
type Living interface {
	// Living returns how many sandboxes have not ended, and how many of an owner.
	Living(owner string) (total, own int)
	// Lives reports whether there is a sandbox of the id that has not ended, and whose it is.
	Lives(id string) (owner string, lives bool)
}

// TakeCounted is Take where somebody else counts the sandboxes that there are: what it takes does not grow with their number.
func (q *Quota) TakeCounted(id, owner string, perKey int, sandboxes Living) (done func(), err error) {
	if q.Total == 0 && perKey == 0 {
		return func() {}, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	total, own := sandboxes.Living(owner)
	count := func(by string, n int) {
		total += n
		if by == owner {
			own += n
		}
	}
	for creating, c := range q.creating {
		if _, counted := sandboxes.Lives(creating); creating != id && !counted {
			count(c.owner, 1)
		}
	}
	if by, counted := sandboxes.Lives(id); counted {
		count(by, -1)
	}
	return q.take(id, owner, perKey, total, own)
}

// take makes room for one more where there are so many. The caller holds mu.
func (q *Quota) take(id, owner string, perKey, total, own int) (done func(), err error) {
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
		q.creating = make(map[string]*creation)
	}
	if q.creating[id] == nil {
		q.creating[id] = &creation{owner: owner}
	}
	q.creating[id].requests++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.creating[id].requests--; q.creating[id].requests == 0 {
			delete(q.creating, id)
		}
	}, nil
}
