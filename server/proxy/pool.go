package proxy

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// keptPerServer and keptInAll bound the connections that a keeping proxy holds while
	// no request needs them.
	keptPerServer = 64
	keptInAll     = 4096
	// keptFor is how long a connection is held. Servers give theirs up later, so that few
	// requests meet one that is just being closed.
	keptFor = 30 * time.Second
)

// pool sends requests that have no body and may be repeated, over connections that it
// keeps. http.Transport would do, but has two goroutines for each connection, and what a
// small request costs there is above all to wake them up: here the caller's goroutine
// writes and reads.
type pool struct {
	mu     sync.Mutex
	idle   map[string][]*conn // by address, those used last at the end
	held   int                // connections in idle
	sweep  *time.Timer        // runs while there are some
	closed bool
}

func newPool() *pool { return &pool{idle: map[string][]*conn{}} }

// RoundTrip implements http.RoundTripper.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, address := r.Context(), r.URL.Host
	if c := p.take(address); c != nil {
		response, err := c.roundTrip(r)
		// A server that gives a connection up may do so while a request is on its way. Nothing
		// of an answer has come, so there is none to lose.
		if err == nil || c.answered || ctx.Err() != nil {
			return response, err
		}
	}
	c, err := p.connect(ctx, address)
	if err != nil {
		return nil, err
	}
	return c.roundTrip(r)
}

// take returns a connection that is open as far as one can see, nil when there is none.
func (p *pool) take(address string) *conn {
	for {
		p.mu.Lock()
		kept := p.idle[address]
		if len(kept) == 0 {
			p.mu.Unlock()
			return nil
		}
		c := kept[len(kept)-1]
		p.set(address, kept[:len(kept)-1])
		p.mu.Unlock()
		if c.open() {
			return c
		}
		c.close()
	}
}

// set replaces the connections to an address. The caller holds mu.
func (p *pool) set(address string, kept []*conn) {
	p.held += len(kept) - len(p.idle[address])
	if len(kept) == 0 {
		delete(p.idle, address)
		return
	}
	p.idle[address] = kept
}

// connect opens a connection.
func (p *pool) connect(ctx context.Context, address string) (*conn, error) {
	opened, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return newConn(p, address, opened)
}

// keep takes a connection that no request uses any more.
func (p *pool) keep(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.idle[c.address]
	if p.closed || len(kept) >= keptPerServer || p.held >= keptInAll {
		c.close()
		return
	}
	c.since = time.Now()
	p.set(c.address, append(kept, c))
	if p.sweep == nil {
		p.sweep = time.AfterFunc(keptFor, func() { p.expire(time.Now()) })
	}
}

// expire closes connections that are held for long enough now.
func (p *pool) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	next := keptFor
	for address, kept := range p.idle {
		due := slices.IndexFunc(kept, func(c *conn) bool { return now.Sub(c.since) < keptFor })
		if due < 0 {
			due = len(kept)
		} else {
			next = min(next, keptFor-now.Sub(kept[due].since))
		}
		for _, c := range kept[:due] {
			c.close()
		}
		p.set(address, slices.Delete(kept, 0, due))
	}
	if p.held == 0 {
		p.sweep = nil
		return
	}
	p.sweep.Reset(next)
}

// close closes what is kept, and keeps nothing from then on.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	for _, kept := range p.idle {
		for _, c := range kept {
			c.close()
		}
	}
	p.idle, p.held = nil, 0
}
