package lifecycle

import (
	"container/list"
	"sync"
)

// Ended bounds what ended sandboxes take, which count towards no [Quota]: K names one. Methods may
// be called concurrently.
type Ended[K comparable] struct {
	budget int

	mu     sync.Mutex
	total  int
	owners map[string]*endedOf
	places map[K]*list.Element // nil for one that Add has returned
}

type endedOf struct {
	total     int
	sandboxes *list.List // of endedSandbox[K], in the order in which they were added
}

type endedSandbox[K comparable] struct {
	name  K
	owner string
	cost  int
}

// NewEnded returns one without sandboxes. budget is what their costs may be together.
func NewEnded[K comparable](budget int) *Ended[K] {
	return &Ended[K]{budget: budget, owners: make(map[string]*endedOf), places: make(map[K]*list.Element)}
}

// Add counts an ended sandbox, once however often it is called, and returns those that have to be
// forgotten now: the oldest of the owner that has the most, so that no owner can have the sandboxes
// of another forgotten. They count no more, also when they are added again before they are removed.
func (e *Ended[K]) Add(name K, owner string, cost int) (forget []K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, has := e.places[name]; has {
		return nil
	}
	of := e.owners[owner]
	if of == nil {
		of = &endedOf{sandboxes: list.New()}
		e.owners[owner] = of
	}
	e.places[name] = of.sandboxes.PushBack(endedSandbox[K]{name, owner, cost})
	of.total += cost
	e.total += cost
	for e.total > e.budget {
		most := of
		for _, other := range e.owners {
			if other.total > most.total {
				most = other
			}
		}
		oldest := most.sandboxes.Front().Value.(endedSandbox[K]).name
		e.drop(oldest)
		e.places[oldest] = nil
		forget = append(forget, oldest)
	}
	return forget
}

// Remove takes out a sandbox that is forgotten; removing a sandbox that was not added has no
// effect.
func (e *Ended[K]) Remove(name K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(name)
}

// drop is Remove for a caller that has locked mu.
func (e *Ended[K]) drop(name K) {
	place := e.places[name]
	delete(e.places, name)
	if place == nil {
		return
	}
	sandbox := place.Value.(endedSandbox[K])
	of := e.owners[sandbox.owner]
	of.sandboxes.Remove(place)
	if of.sandboxes.Len() == 0 {
		delete(e.owners, sandbox.owner)
	}
	of.total -= sandbox.cost
	e.total -= sandbox.cost
}
