package images

import (
	"context"
	"net"
	"sync"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/fair"
)

// turns bound how many layers are made at once, and how many of them come from one host, so that a
// slow registry cannot stop all others. One server may have many names: what keeps a turn from
// others has to be fast, see [pace]. Callers take turns by their [engine.Caller]: a quarter of the
// turns is for those who have none, so that slow registries of one do not stop the pulls of
// another.
type turns struct {
	all     *fair.Queue
	perHost int

	mu    sync.Mutex
	hosts map[string]*hostTurns
}

type hostTurns struct {
	queue *fair.Queue
	users int // callers that have a turn of the host or wait for one
}

func newTurns(all, perHost int) *turns {
	return &turns{all: newQueue(all), perHost: perHost, hosts: map[string]*hostTurns{}}
}

func newQueue(turns int) *fair.Queue { return fair.New(turns, turns/4) }

// take waits for a turn. The host of the registry may have a port; it is empty for what comes from
// this machine.
func (t *turns) take(ctx context.Context, host string) (*turn, error) {
	owner := engine.CallerOf(ctx).Name
	if host == "" {
		return t.enterAll(ctx, owner, func() {})
	}
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	h := t.join(host)
	if err := h.queue.Take(ctx, owner); err != nil {
		t.leave(host, h)
		return nil, err
	}
	return t.enterAll(ctx, owner, func() {
		h.queue.Give(owner)
		t.leave(host, h)
	})
}

// enterAll waits for a turn, and calls leaveHost when there is none or it is released.
func (t *turns) enterAll(ctx context.Context, owner string, leaveHost func()) (*turn, error) {
	if err := t.all.Take(ctx, owner); err != nil {
		leaveHost()
		return nil, err
	}
	return &turn{turns: t, owner: owner, leaveHost: leaveHost}, nil
}

// turn is one that a caller has. Its methods are not called at the same time.
type turn struct {
	turns     *turns
	owner     string
	leaveHost func()
	handedOn  bool
}

// yield hands the turn to a caller that waits because all are taken, and reports whether there was
// one: so one caller that waits ends one download. One that waits for others of its own host gets
// none.
func (t *turn) yield() bool {
	if !t.handedOn {
		t.handedOn = t.turns.all.Pass(t.owner)
	}
	return t.handedOn
}

// release is called once, also for a turn that was handed on.
func (t *turn) release() {
	if !t.handedOn {
		t.turns.all.Give(t.owner)
	}
	t.leaveHost()
}

func (t *turns) join(host string) *hostTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[host]
	if h == nil {
		h = &hostTurns{queue: newQueue(t.perHost)}
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
