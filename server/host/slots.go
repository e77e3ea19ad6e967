package host

import (
	"context"
	"slices"
	"sync"
)

// slots bounds how many snapshots are taken at once. Owners take turns: a slot that is free goes to
// the one that has the fewest among those that wait, so that the many snapshots of one do not hold
// up everyone's.
type slots struct {
	mu      sync.Mutex
	free    int
	held    map[string]int // by owner
	waiting []*slotWaiter
}

type slotWaiter struct {
	owner string
	given chan struct{} // closed when it has a slot
}

// enter waits for a slot of the owner, which is free again once leave is called, the first time. It
// returns ctx's cause when ctx ends first; leave does nothing then.
func (s *slots) enter(ctx context.Context, owner string) (leave func(), err error) {
	w := &slotWaiter{owner: owner, given: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.give()
	s.mu.Unlock()
	leave = sync.OnceFunc(func() { s.leave(owner) })
	select {
	case <-w.given:
		return leave, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // it was given one at the same moment
		leave()
	}
	return func() {}, context.Cause(ctx)
}

func (s *slots) leave(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[owner]--; s.held[owner] <= 0 {
		delete(s.held, owner)
	}
	s.give()
}

// give gives the free slots to those that wait. The caller holds mu.
func (s *slots) give() {
	for s.free > 0 && len(s.waiting) > 0 {
		next := slices.MinFunc(s.waiting, func(a, b *slotWaiter) int { return s.held[a.owner] - s.held[b.owner] })
		s.free--
		s.held[next.owner]++
		close(next.given)
		// Its owner's others come behind those of all owners.
		var others, own []*slotWaiter
		for _, w := range s.waiting {
			switch {
			case w == next:
			case w.owner == next.owner:
				own = append(own, w)
			default:
				others = append(others, w)
			}
		}
		s.waiting = append(others, own...)
	}
}

// waits returns how many wait.
func (s *slots) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}
