package lifecycle

import (
	"cmp"
	"iter"
	"sync"
)

// Quota bounds how many sandboxes that have not ended there are. Methods may be called
// concurrently; the zero value sets no bound.
type Quota struct {
	Total int // of all API keys together; 0 is no limit

	mu       sync.Mutex
	creating map[string]*creation // by the id of a sandbox that may be missing in what there is
}

// creation is a sandbox that is being created, by one request or by several with the same
// Idempotency-Key.
type creation struct {
	owner    string
	limits   Limits
	requests int
}

// Request is what a new sandbox takes of a [Quota].
type Request struct {
	ID, Owner    string
	Limits       Limits
	MaxSandboxes int    // sandboxes of the owner that have not ended; 0 is no limit
	Bounds       Bounds // of the owner
}

// Take makes room for a new sandbox among those that there are, in any state. Without room it
// returns an Error of KindConflict; otherwise a function that must be called once there is the
// sandbox, or there will be none.
func (q *Quota) Take(r Request, sandboxes iter.Seq[*Sandbox]) (done func(), err error) {
	if q.Total == 0 && r.MaxSandboxes == 0 && len(r.Bounds.Total) == 0 {
		return func() {}, nil
	}
	id, owner := r.ID, r.Owner
	q.mu.Lock()
	defer q.mu.Unlock()
	total, own, used := 0, 0, Limits{}
	count := func(by string, limits Limits) {
		total++
		if by == owner {
			own++
			used.NanoCPUs += limits.NanoCPUs
			used.MemoryBytes += limits.MemoryBytes
		}
	}
	for creating, c := range q.creating {
		if creating != id {
			count(c.owner, c.limits)
		}
	}
	for s := range sandboxes {
		if _, counted := q.creating[s.ID]; !counted && s.ID != id && !s.Status.State.Final() {
			count(s.Owner, s.Limits)
		}
	}
	if err := r.Bounds.checkTotal(owner, used, r.Limits); err != nil {
		return nil, err
	}
	return q.take(r, total, own)
}

// Living counts the sandboxes that there are.
type Living interface {
	// Living returns how many sandboxes have not ended, and how many of an owner.
	Living(owner string) (total, own int)
	// Lives reports whether there is a sandbox of the id that has not ended, and whose it is.
	Lives(id string) (owner string, lives bool)
}

// TakeCounted is Take for a request whose Bounds have no Total, where the caller counts the
// sandboxes that there are: what it takes does not grow with their number.
func (q *Quota) TakeCounted(r Request, sandboxes Living) (done func(), err error) {
	if q.Total == 0 && r.MaxSandboxes == 0 {
		return func() {}, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	total, own := sandboxes.Living(r.Owner)
	count := func(by string, n int) {
		total += n
		if by == r.Owner {
			own += n
		}
	}
	for creating, c := range q.creating {
		if _, counted := sandboxes.Lives(creating); creating != r.ID && !counted {
			count(c.owner, 1)
		}
	}
	if by, counted := sandboxes.Lives(r.ID); counted {
		count(by, -1)
	}
	return q.take(r, total, own)
}

// take makes room for one more where there are so many. The caller holds mu.
func (q *Quota) take(r Request, total, own int) (done func(), err error) {
	if r.MaxSandboxes > 0 && own >= r.MaxSandboxes {
		return nil, Conflictf(
			"sandboxes of API key %q that have not ended: %d, and %s is %d; delete one, or wait until one expires",
			r.Owner, own, cmp.Or(r.Bounds.Sandboxes, "server.keys.max_sandboxes"), r.MaxSandboxes)
	}
	if q.Total > 0 && total >= q.Total {
		return nil, Conflictf(
			"sandboxes that have not ended: %d, and server.max_sandboxes is %d; delete one, or wait until one expires",
			total, q.Total)
	}
	if q.creating == nil {
		q.creating = make(map[string]*creation)
	}
	id := r.ID
	if q.creating[id] == nil {
		q.creating[id] = &creation{owner: r.Owner, limits: r.Limits}
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
