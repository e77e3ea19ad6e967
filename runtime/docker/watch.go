package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/system"

	"sandbox.internal/runtime/engine"
)

// watched are the actions that are reported to callers, with their names in the contract.
var watched = map[events.Action]engine.EventType{
	events.ActionStart:   engine.EventStarted,
	events.ActionDie:     engine.EventExited,
	events.ActionPause:   engine.EventFrozen,
	events.ActionUnPause: engine.EventThawed,
	events.ActionDestroy: engine.EventRemoved,
}

// notLabels are what the engine mixes in with the container's labels in an event.
var notLabels = []string{"image", "name", "exitCode", "execDuration", "signal"}

// Watch implements [engine.Engine]. It returns ctx's error, or [engine.ErrUnavailable] when the
// engine hung up. Events at the moment of the subscription may be reported twice. handle must be
// quick: the engine drops what a slow reader leaves behind.
func (e *Engine) Watch(ctx context.Context, labels map[string]string, ready func(),
	handle func(engine.Event)) error {
	const op = "watch containers"
	// The engine answers a moment before it subscribes us. Asking for everything since a time
	// before the request, by the engine's own clock, makes it replay what falls into that moment.
	since, err := e.now(ctx)
	if err != nil {
		return err
	}
	filter := labelFilter(labels)
	filter.Add("type", string(events.ContainerEventType))
	for action := range watched {
		filter.Add("event", string(action))
	}
	watcher, leave := e.unseen.watch()
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	messages, failed := e.api.Events(ctx,
		events.ListOptions{Since: since.Format(time.RFC3339Nano), Filters: filter})
	defer func() {
		cancel()
		for range failed { // closed when the client's goroutine has ended
		}
	}()
	select {
	case err := <-failed:
		return hungUp(ctx, op, err)
	default:
		ready()
	}
	for {
		select {
		case message := <-messages:
			if event, ok := fromMessage(message); ok && !e.unseen.hides(watcher, message) {
				handle(event)
			}
		case err := <-failed:
			return hungUp(ctx, op, err)
		}
	}
}

func (e *Engine) now(ctx context.Context) (time.Time, error) {
	var info system.Info
	err := e.call(ctx, "ask the engine for its time", forEngine,
		func(ctx context.Context) (err error) {
			info, err = e.api.Info(ctx)
			return err
		})
	if err != nil {
		return time.Time{}, err
	}
	now, err := time.Parse(time.RFC3339Nano, info.SystemTime)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the engine for its time: %w", err)
	}
	return now, nil
}

func hungUp(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return describe(op, engine.ErrUnavailable, err)
}

func fromMessage(message events.Message) (engine.Event, bool) {
	kind, ok := watched[message.Action]
	if !ok {
		return engine.Event{}, false
	}
	labels := callersLabels(message.Actor.Attributes)
	for _, name := range notLabels {
		delete(labels, name)
	}
	return engine.Event{Type: kind, Labels: labels}, true
}
