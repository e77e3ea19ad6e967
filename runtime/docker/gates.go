package docker

import (
	"context"
	"slices"
	"sync"
)

// gates keep calls that change what a container does apart from those that need it as it is. The
// engine itself does not: a freeze would succeed because a snapshot has just frozen the container,
// which then runs on.
type gates struct {
	mu sync.Mutex
	at map[string]*gate // by the id and by the name of a container, while there are calls
}

// gate is that of one container. Its fields are guarded by gates.mu.
type gate struct {
	passing int           // calls that change what it does
	closed  bool          // by a call that needs it as it is
	changed chan struct{} // closed by the next change
}

// pass waits until the gate of a container is open, and keeps it so until leave is called.
func (g *gates) pass(ctx context.Context, container string) (leave func(), err error) {
	err = g.await(ctx, container, func(at *gate) bool {
		if at.closed {
			return false
		}
		at.passing++
		return true
	})
	return func() { g.change(container, func(at *gate) { at.passing-- }) }, err
}

// close waits until no call passes, and closes the gates of a container, which is given by its id
// and its name, until open is called.
func (g *gates) close(ctx context.Context, containers ...string) (open func(), err error) {
	slices.Sort(containers) // two calls that close the same gates do not wait for one another
	containers = slices.Compact(containers)
	closed := 0
	open = func() {
		for _, container := range containers[:closed] {
			g.change(container, func(at *gate) { at.closed = false })
		}
	}
	for _, container := range containers {
		err := g.await(ctx, container, func(at *gate) bool {
			if at.closed || at.passing > 0 {
				return false
			}
			at.closed = true
			return true
		})
		if err != nil {
			open()
			return nil, err
		}
		closed++
	}
	return open, nil
}

// await calls try, which succeeds when it returns true, again after each change of the gate.
func (g *gates) await(ctx context.Context, container string, try func(*gate) bool) error {
	for {
		g.mu.Lock()
		at := g.at[container]
		if at == nil {
			at = &gate{changed: make(chan struct{})}
			g.at[container] = at
		}
		done, changed := try(at), at.changed
		g.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gates) change(container string, how func(*gate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.at[container]
	how(at)
	close(at.changed)
	at.changed = make(chan struct{})
	if at.passing == 0 && !at.closed {
		delete(g.at, container)
	}
}
