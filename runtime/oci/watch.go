package oci

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"sandbox.internal/runtime/engine"
)

// maxEvents is how many events wait for a watcher that does not keep up, before it is cut off.
const maxEvents = 1 << 16

// watcher is one call of Watch.
type watcher struct {
	labels map[string]string

	mu      sync.Mutex
	events  []engine.Event
	tooSlow bool
	wake    chan struct{} // holds a token while there is something
}

// Watch implements [engine.Engine]. A caller that is far behind is cut off with [engine.ErrUnavailable].
func (e *Engine) Watch(ctx context.Context, labels map[string]string, ready func(), handle func(engine.Event)) error {
	const op = "watch containers"
	w := &watcher{labels: maps.Clone(labels), wake: make(chan struct{}, 1)}
	e.mu.Lock()
	if e.closing.Err() != nil {
		e.mu.Unlock()
		return closedError(op)
	}
	e.watchers[w] = struct{}{}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.watchers, w)
		e.mu.Unlock()
	}()
	ready()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.closing.Done():
			return closedError(op)
		}
		events, tooSlow := w.take()
		for _, event := range events {
			handle(event)
		}
		if tooSlow {
			return fmt.Errorf("%s: %w: more than %d events were waiting", op, engine.ErrUnavailable, maxEvents)
		}
	}
}

func (w *watcher) take() (events []engine.Event, tooSlow bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, w.events = w.events, nil
	return events, w.tooSlow
}

func (w *watcher) add(event engine.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == maxEvents {
		w.tooSlow = true
	} else {
		w.events = append(w.events, event)
	}
	notify(w.wake)
}

// emit reports what happened to a container. The Engine's mu is held, so that events come in the order of what they are about.
func (e *Engine) emit(c *container, kind engine.EventType) {
	for w := range e.watchers {
		if carries(c.record.Spec.Labels, w.labels) {
			w.add(engine.Event{Type: kind, Labels: maps.Clone(c.record.Spec.Labels)})
		}
	}
}
