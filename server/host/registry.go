package host

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"sandbox.internal/server/lifecycle"
)

// registry holds the actors, by id, in the order of their creation, and by what listings filter.
// Listings read it alone, so that a few sandboxes among many thousands cost no more than those few.
type registry struct {
	mu      sync.RWMutex
	actors  map[string]*actor
	boxes   map[string]*actor // by the identity of their box
	ordered []*actor          // oldest first, ties by id descending: a listing iterates backwards
	states  []lifecycle.State // of ordered: a filter reads these and not ten thousand records
	tagged  map[tag]map[*actor]struct{}
}

// tag is one pair of a sandbox's metadata.
type tag struct{ key, value string }

func newRegistry() registry {
	return registry{
		actors: make(map[string]*actor),
		boxes:  make(map[string]*actor),
		tagged: make(map[tag]map[*actor]struct{}),
	}
}

func (r *registry) add(a *actor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sandbox := &a.snapshot().Sandbox
	r.actors[a.id] = a
	r.boxes[a.snapshot().Box] = a
	at, _ := slices.BinarySearchFunc(r.ordered, a, order)
	r.ordered = slices.Insert(r.ordered, at, a)
	r.states = slices.Insert(r.states, at, sandbox.Status.State)
	r.tag(a, sandbox.Metadata)
}

func (r *registry) remove(a *actor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.actors, a.id)
	delete(r.boxes, a.snapshot().Box)
	if at, found := slices.BinarySearchFunc(r.ordered, a, order); found {
		r.ordered = slices.Delete(r.ordered, at, at+1)
		r.states = slices.Delete(r.states, at, at+1)
		r.untag(a, a.snapshot().Sandbox.Metadata)
	}
}

// publish makes a record visible. Before add and after remove only Get and waiters see it.
func (r *registry) publish(a *actor, record *lifecycle.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := a.view.Swap(record)
	at, found := slices.BinarySearchFunc(r.ordered, a, order)
	if !found {
		return
	}
	r.states[at] = record.Sandbox.Status.State
	if !maps.Equal(before.Sandbox.Metadata, record.Sandbox.Metadata) {
		r.untag(a, before.Sandbox.Metadata)
		r.tag(a, record.Sandbox.Metadata)
	}
}

func (r *registry) tag(a *actor, metadata map[string]string) {
	for key, value := range metadata {
		actors := r.tagged[tag{key, value}]
		if actors == nil {
			actors = map[*actor]struct{}{}
			r.tagged[tag{key, value}] = actors
		}
		actors[a] = struct{}{}
	}
}

func (r *registry) untag(a *actor, metadata map[string]string) {
	for key, value := range metadata {
		actors := r.tagged[tag{key, value}]
		if delete(actors, a); len(actors) == 0 {
			delete(r.tagged, tag{key, value})
		}
	}
}

// candidates returns, newest first, a superset of the actors that the filter matches.
func (r *registry) candidates(filter lifecycle.Filter) iter.Seq[*actor] {
	if len(filter.Metadata) > 0 {
		return slices.Values(r.rarest(filter.Metadata))
	}
	return func(yield func(*actor) bool) {
		for i, a := range slices.Backward(r.ordered) {
			if (len(filter.States) == 0 || slices.Contains(filter.States, r.states[i])) &&
				!yield(a) {
				return
			}
		}
	}
}

// rarest returns, newest first, the actors with the pair of the metadata that the fewest actors
// have.
func (r *registry) rarest(metadata map[string]string) []*actor {
	var fewest map[*actor]struct{}
	first := true
	for key, value := range metadata {
		if actors := r.tagged[tag{key, value}]; first || len(actors) < len(fewest) {
			fewest, first = actors, false
		}
	}
	return slices.SortedFunc(maps.Keys(fewest), func(a, b *actor) int { return order(b, a) })
}

func order(a, b *actor) int {
	if c := a.createdAt.Compare(b.createdAt); c != 0 {
		return c
	}
	return strings.Compare(b.id, a.id)
}

// get returns the actor of a sandbox, or an error of KindNotFound.
func (r *registry) get(id string) (*actor, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if a, ok := r.actors[id]; ok {
		return a, nil
	}
	return nil, lifecycle.NotFound(id)
}

// has reports whether the sandbox exists.
func (r *registry) has(id string) bool {
	_, err := r.get(id)
	return err == nil
}

// owner returns the actor of the sandbox that has the box; nil when there is none.
func (r *registry) owner(box string) *actor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.boxes[box]
}

// sandboxes are all sandboxes. They must not be changed.
func (r *registry) sandboxes() iter.Seq[*lifecycle.Sandbox] {
	return func(yield func(*lifecycle.Sandbox) bool) {
		r.mu.RLock()
		defer r.mu.RUnlock()
		for _, a := range r.ordered {
			if !yield(&a.snapshot().Sandbox) {
				return
			}
		}
	}
}

func (r *registry) all() []*actor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.ordered)
}
