// Package background runs what an Engine does behind the requests of its callers, until the Engine
// is closed.
package background

import (
	"context"
	"fmt"
	"sync"

	"sandbox.internal/runtime/engine"
)

// Group has the functions that run. Use [New].
type Group struct {
	mu      sync.Mutex
	closing context.Context //nolint:containedctx // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New returns a Group without functions.
func New() *Group {
	g := &Group{}
	g.closing, g.cancel = context.WithCancel(context.Background())
	return g
}

// Try runs a function behind the request. It returns false, and does not run it, once the Group is
// closed.
func (g *Group) Try(call func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing.Err() != nil {
		return false
	}
	g.running.Go(call)
	return true
}

// Run runs a function behind the request, or within it once the Group is closed.
func (g *Group) Run(call func()) {
	if !g.Try(call) {
		call()
	}
}

// Close lets Try run nothing any more, and waits for what runs.
func (g *Group) Close() {
	g.mu.Lock()
	g.cancel()
	g.mu.Unlock()
	g.running.Wait()
}

// Closing returns a context that ends with Close.
func (g *Group) Closing() context.Context { return g.closing }

// Check returns the error of an operation on an Engine that is closed, and nil before that.
func (g *Group) Check(op string) error {
	if g.closing.Err() == nil {
		return nil
	}
	return ClosedError(op)
}

// ClosedError is the error of an operation that the closing of the Engine has cut off. It wraps
// [engine.ErrUnavailable].
func ClosedError(op string) error {
	return fmt.Errorf("%s: %w: it is closed", op, engine.ErrUnavailable)
}
