package images

import (
	"context"
	"net"
	"sync"
)

// turns bound how many layers are made at once, and how many of them come from one host, so that a slow registry cannot stop all others. One
// server may have many names: what keeps a turn from others has to be fast, see [pace].
type turns struct {
	all     chan struct{}
	perHost int
	handed  chan struct{} // has no buffer: a turn passes from a caller that yields to one that waits because all are taken

	mu    sync.Mutex
	hosts map[string]*hostTurns
}

type hostTurns struct {
	taken chan struct{}
	users int // callers that have a turn of the host or wait for one
}

func newTurns(all, perHost int) *turns {
	return &turns{all: make(chan struct{}, all), perHost: perHost, handed: make(chan struct{}), hosts: map[string]*hostTurns{}}
}

// take waits for a turn. The host of the registry may have a port; it is empty for what comes from this machine.
func (t *turns) take(ctx context.Context, host string) (*turn, error) {
	if host == "" {
		return t.enterAll(ctx, func() {})
	}
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	h := t.join(host)
	select {
	case h.taken <- struct{}{}:
	case <-ctx.Done():
		t.leave(host, h)
		return nil, ctx.Err()
	}
	return t.enterAll(ctx, func() {
		<-h.taken
		t.leave(host, h)
	})
}

// enterAll waits for a turn, and calls leaveHost when there is none or it is released.
func (t *turns) enterAll(ctx context.Context, leaveHost func()) (*turn, error) {
	select {
	case t.all <- struct{}{}:
	case <-t.handed:
	case <-ctx.Done():
		leaveHost()
		return nil, ctx.Err()
	}
	return &turn{turns: t, leaveHost: leaveHost}, nil
}

// turn is one that a caller has. Its methods are not called at the same time.
type turn struct {
	turns     *turns
	leaveHost func()
	handedOn  bool
}

// yield hands the turn to a caller that waits because all are taken, and reports whether there was one: so one caller that waits ends one
// download. One that waits for others of its own host gets none.
func (t *turn) yield() bool {
	if t.handedOn {
		return true
	}
	select {
	case t.turns.handed <- struct{}{}:
		t.handedOn = true
	default:
	}
	return t.handedOn
}

// release is called once, also for a turn that was handed on.
func (t *turn) release() {
	if !t.handedOn {
		<-t.turns.all
	}
	t.leaveHost()
}

func (t *turns) join(host string) *hostTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[host]
	if h == nil {
		h = &hostTurns{taken: make(chan struct{}, t.perHost)}
		t.hosts[host] = h
	}
	h.users++
	return h
}

func (t *turns) leave(host string, h *hostTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(t.hosts, host)
	}
}
