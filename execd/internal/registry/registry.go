// Package registry keeps what a manager has started, by id: from the start until it is forgotten.
package registry

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Registry has values of one kind. The zero Registry is empty. It is safe for concurrent use.
type Registry[T any] struct {
	mu      sync.Mutex
	values  map[string]T
	stopped bool
	running sync.WaitGroup
}

// Reserve counts a value that is about to be started as running. It reports false when
// [Registry.Stop] was called: then nothing may be started. Otherwise Done must be called, once,
// when the start failed or the value has ended.
func (r *Registry[T]) Reserve() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.running.Add(1)
	return true
}

// Done counts a value as running no longer. It may be read on until Remove.
func (r *Registry[T]) Done() { r.running.Done() }

// Add registers a value that was started. It reports whether Stop was called since Reserve: Stop
// has not seen the value, which the caller must interrupt.
func (r *Registry[T]) Add(id string, value T) (stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make(map[string]T)
	}
	r.values[id] = value
	return r.stopped
}

// Get returns a value, and whether there is one.
func (r *Registry[T]) Get(id string) (value T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, ok = r.values[id]
	return value, ok
}

// All returns the values in no order.
func (r *Registry[T]) All() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.values))
}

// Remove forgets a value.
func (r *Registry[T]) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.values, id)
}

// Stop permits no further start, interrupts every value, and waits for the end of those that run.
// When ctx ends first, they are killed.
func (r *Registry[T]) Stop(ctx context.Context, interrupt, kill func(T)) {
	r.mu.Lock()
	r.stopped = true
	values := slices.Collect(maps.Values(r.values))
	r.mu.Unlock()
	for _, value := range values {
		interrupt(value)
	}
	ended := make(chan struct{})
	go func() { r.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		for _, value := range values {
			kill(value)
		}
		<-ended
	}
}
