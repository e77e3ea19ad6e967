package images

import (
	"context"
	"net"
	"sync"
)

// turns bound how many layers are made at once, and how many of them come from one host, so that a slow registry cannot stop all others.
type turns struct {
	all     chan struct{}
	perHost int

	mu    sync.Mutex
	hosts map[string]*hostTurns
}

type hostTurns struct {
	taken chan struct{}
	users int // callers that have a turn of the host or wait for one
}

func newTurns(all, perHost int) *turns {
	return &turns{all: make(chan struct{}, all), perHost: perHost, hosts: map[string]*hostTurns{}}
}

// take waits for a turn. The host of the registry may have a port; it is empty for what comes from this machine.
func (t *turns) take(ctx context.Context, host string) (release func(), err error) {
	if host == "" {
		return enter(ctx, t.all)
	}
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	h := t.join(host)
	releaseHost, err := enter(ctx, h.taken)
	if err != nil {
		t.leave(host, h)
		return nil, err
	}
	releaseAll, err := enter(ctx, t.all)
	if err != nil {
		releaseHost()
		t.leave(host, h)
		return nil, err
	}
	return func() {
		releaseAll()
		releaseHost()
		t.leave(host, h)
	}, nil
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

func enter(ctx context.Context, taken chan struct{}) (leave func(), err error) {
	select {
	case taken <- struct{}{}:
		return func() { <-taken }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
