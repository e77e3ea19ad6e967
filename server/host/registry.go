package host

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"sandbox.internal/server/lifecycle"
)

// registry knows the actors, by id and in the order of their creation.
type registry struct {
	mu      sync.RWMutex
	actors  map[string]*actor
	ordered []*actor // oldest first, ties by id descending: a listing walks it backwards
}

func (r *registry) add(a *actor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.actors[a.id] = a
	at, _ := slices.BinarySearchFunc(r.ordered, a, order)
	r.ordered = slices.Insert(r.ordered, at, a)
}

func (r *registry) remove(a *actor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.actors, a.id)
	if at, found := slices.BinarySearchFunc(r.ordered, a, order); found {
		r.ordered = slices.Delete(r.ordered, at, at+1)
	}
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

func (r *registry) all() []*actor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.ordered)
}

// Get implements lifecycle.Backend.
func (h *Host) Get(_ context.Context, id string) (lifecycle.Sandbox, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return a.now().Sandbox, nil
}

// List implements lifecycle.Backend.
func (h *Host) List(_ context.Context, filter lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	if err := page.Validate(); err != nil {
		return lifecycle.Listing{}, err
	}
	r := &h.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	listing := lifecycle.Listing{Items: []lifecycle.Sandbox{}}
	for i := len(r.ordered) - 1; i >= 0; i-- {
		sandbox := &r.ordered[i].now().Sandbox
		if !filter.Match(sandbox) {
			continue
		}
		// Divided, not multiplied: a page number may be as large as an integer gets.
		if listing.Total/page.Size == page.Number-1 {
			listing.Items = append(listing.Items, *sandbox)
		}
		listing.Total++
	}
	return listing, nil
}

// await returns when holds is true of the sandbox's record, the sandbox is forgotten, the time is up, or ctx ends.
// It returns the record as it was last seen.
func (h *Host) await(ctx context.Context, a *actor, atMost time.Duration, holds func(*lifecycle.Record) bool) *lifecycle.Record {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for {
		changed := a.changes()
		record := a.now()
		if holds(record) {
			return record
		}
		select {
		case <-changed:
		case <-a.gone:
			return record
		case <-timer.C:
			return record
		case <-ctx.Done():
			return record
		}
	}
}
