package containers

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/background"
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

// Watch calls handle for every event of containers that have all the labels, after ready, until ctx
// ends. A caller that is far behind is cut off with [engine.ErrUnavailable].
func (r *Registry) Watch(ctx context.Context, labels map[string]string, ready func(), handle func(engine.Event)) error {
	const op = "watch containers"
	w := &watcher{labels: maps.Clone(labels), wake: make(chan struct{}, 1)}
	if err := r.background.Check(op); err != nil {
		return err
	}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watchers, w)
		r.mu.Unlock()
	}()
	ready()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.background.Closing().Done():
			return background.ClosedError(op)
		}
		events, tooSlow := w.drain()
		for _, event := range events {
			handle(event)
		}
		if tooSlow {
			return fmt.Errorf("%s: %w: more than %d events were waiting", op, engine.ErrUnavailable, maxEvents)
		}
	}
}

func (w *watcher) drain() (events []engine.Event, tooSlow bool) {
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
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// emit reports what happened to a container. The Registry's mu is held, so that events come in the
// order of what they are about.
func (r *Registry) emit(c *Container, kind engine.EventType) {
	for w := range r.watchers {
		if carries(c.record.Spec.Labels, w.labels) {
			w.add(engine.Event{Type: kind, Labels: maps.Clone(c.record.Spec.Labels)})
		}
	}
}
