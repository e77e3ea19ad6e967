package images

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// turns bound how many layers are made at once, and how many of them come from one host, so that a slow registry cannot stop all others. One
// server may have many names: what keeps a turn from others has to be fast, see [pace].
type turns struct {
	all     chan struct{}
	perHost int
	waiting atomic.Int64 // callers that all turns are taken for

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
		return t.enterAll(ctx)
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
	releaseAll, err := t.enterAll(ctx)
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

func (t *turns) enterAll(ctx context.Context) (leave func(), err error) {
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all }, nil
	default:
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	return enter(ctx, t.all)
}

// wanted reports whether a caller waits because all turns are taken. It does not count one that waits for others of its own host.
func (t *turns) wanted() bool { return t.waiting.Load() > 0 }

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
