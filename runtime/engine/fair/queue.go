// Package fair lets callers take turns by whom they belong to, so that many of one do not hold up
// another's.
package fair

import (
	"context"
	"slices"
	"sync"
)

// Queue bounds how many callers go on at once. Owners who wait get the next turn one after another,
// whatever number each has waiting; each owner's own are served in order.
type Queue struct {
	reserved int

	mu      sync.Mutex
	free    int
	held    map[string]int
	waiting map[string][]chan struct{} // each is closed when its caller has a turn
	order   []string                   // owners who wait: the first is the next
}

// New returns a queue with so many turns. The reserved ones among them are for owners who hold
// none, so that one who takes all others, and keeps them, does not keep the next owner out. The
// empty owner is the service itself: it may take any turn.
func New(turns, reserved int) *Queue {
	return &Queue{free: turns, reserved: reserved, held: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// Take waits for a turn. The owner must Give it back, or Pass it on, once.
func (q *Queue) Take(ctx context.Context, owner string) error {
	q.mu.Lock()
	if len(q.waiting[owner]) == 0 && q.may(owner) {
		q.grant(owner)
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(q.waiting[owner]) == 0 {
		q.order = append(q.order, owner)
	}
	q.waiting[owner] = append(q.waiting[owner], turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the same time
		q.giveBack(owner)
		q.serve()
	default:
		q.leave(owner, turn)
	}
	return ctx.Err()
}

// Give ends a turn of the owner.
func (q *Queue) Give(owner string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveBack(owner)
	q.serve()
}

// Pass ends a turn of the owner if another caller waits that gets it, and reports whether there was
// one.
func (q *Queue) Pass(owner string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveBack(owner)
	if q.serve() > 0 {
		return true
	}
	q.grant(owner)
	return false
}

// Waiting returns how many callers wait.
func (q *Queue) Waiting() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, turns := range q.waiting {
		n += len(turns)
	}
	return n
}

// The methods below need q.mu.

func (q *Queue) may(owner string) bool {
	return q.free > q.reserved || q.free > 0 && (owner == "" || q.held[owner] == 0)
}

func (q *Queue) grant(owner string) {
	q.free--
	q.held[owner]++
}

func (q *Queue) giveBack(owner string) {
	q.free++
	if q.held[owner]--; q.held[owner] == 0 {
		delete(q.held, owner)
	}
}

// serve gives turns to those who wait, as far as they may have them, and returns how many.
func (q *Queue) serve() (served int) {
	for {
		next := slices.IndexFunc(q.order, q.may)
		if next < 0 {
			return served
		}
		owner := q.order[next]
		turn := q.waiting[owner][0]
		q.grant(owner)
		q.leave(owner, turn)
		if at := slices.Index(q.order, owner); at >= 0 { // it waits for more: behind the others
			q.order = append(slices.Delete(q.order, at, at+1), owner)
		}
		close(turn)
		served++
	}
}

// leave takes a caller out of the queue.
func (q *Queue) leave(owner string, turn chan struct{}) {
	rest := slices.DeleteFunc(q.waiting[owner], func(other chan struct{}) bool { return other == turn })
	if q.waiting[owner] = rest; len(rest) > 0 {
		return
	}
	delete(q.waiting, owner)
	q.order = slices.DeleteFunc(q.order, func(other string) bool { return other == owner })
}
