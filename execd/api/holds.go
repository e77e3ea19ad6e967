package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"sandbox.internal/execd/internal/holds"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// busyTime is how long the connection of a stream may take an event of whether the sandbox is idle:
// the work that is announced waits for it.
const busyTime = time.Second

// uncounted are the paths whose requests do not keep the sandbox awake: those by which it is
// watched, which may be all the time, and those of the service that puts it to sleep.
var uncounted = map[string]bool{
	"/ping": true, "/metrics": true, "/metrics/watch": true, "/activity": true, "/activity/watch": true,
	"/idle/watch": true, "/freeze": true, "/thaw": true, "/e2b/health": true,
}

// proxied and tunneled begin the paths that lead to the ports of the sandbox.
const (
	proxied  = "/proxy/"
	tunneled = "/tunnel/"
)

// holding returns an authentication after which a request keeps the sandbox awake until it has been
// answered. A request without the token keeps nothing awake.
func holding(registry *holds.Registry, authenticate func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		principal, err := authenticate(r)
		if err != nil {
			return nil, err
		}
		if hold := begin(registry, r); hold != nil {
			serve.After(r.Context(), hold.End)
			hold.AwaitAwake(r.Context())
		} else {
			listen.Disregard(r.Context())
		}
		return principal, nil
	}
}

// begin takes a hold for a request, nil for one that is none.
func begin(registry *holds.Registry, r *http.Request) *holds.Hold {
	path := r.URL.Path
	for _, prefix := range []string{proxied, tunneled} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			port, _, _ := strings.Cut(rest, "/")
			return registry.Begin(holds.Proxy, port)
		}
	}
	if uncounted[path] || path == "/holds" && r.Method != http.MethodPost {
		return nil
	}
	return registry.BeginRequest(r.Method, path)
}

func (h *handlers) GetHolds(context.Context, gen.GetHoldsRequestObject) (gen.GetHoldsResponseObject, error) {
	report := h.holds.Report()
	out := gen.Holds{
		Holds: make([]gen.Hold, len(report.Held)), IdleMilliseconds: report.Idle.Milliseconds(), WakeAt: timeOrNone(report.WakeAt),
	}
	for i, held := range report.Held {
		out.Holds[i] = gen.Hold{Kind: gen.HoldKind(held.Kind), ID: held.ID, Since: held.Since.UTC()}
	}
	return gen.GetHolds200JSONResponse(out), nil
}

func (h *handlers) KeepAwake(_ context.Context, request gen.KeepAwakeRequestObject) (gen.KeepAwakeResponseObject, error) {
	body := request.Body
	if body.Seconds == nil && body.WakeAfterSeconds == nil {
		return nil, serve.Invalid("body: must have seconds, wakeAfterSeconds or both")
	}
	name := value(body.Name)
	var granted gen.KeptAwake
	if body.WakeAfterSeconds != nil {
		at, err := h.holds.WakeAfter(name, time.Duration(*body.WakeAfterSeconds)*time.Second)
		if err != nil {
			return nil, err
		}
		granted.WakeAt = timeOrNone(at)
	}
	if body.Seconds != nil {
		until, err := h.holds.KeepAwake(name, time.Duration(*body.Seconds)*time.Second)
		if err != nil {
			return nil, err
		}
		granted.Until = timeOrNone(until)
	}
	return gen.KeepAwake200JSONResponse(granted), nil
}

func (h *handlers) WatchIdle(ctx context.Context, request gen.WatchIdleRequestObject) (gen.WatchIdleResponseObject, error) {
	begin := h.holds.Watch
	if value(request.Params.Sleep) {
		begin = h.holds.WatchSleep
	}
	watch, err := begin(time.Duration(request.Params.IdleMilliseconds) * time.Millisecond)
	if err != nil {
		return nil, err
	}
	return idleStream{ctx: ctx, watch: watch}, nil
}

// idleStream is the answer with whether the sandbox is idle.
type idleStream struct {
	ctx   context.Context
	watch *holds.Watch
}

// VisitWatchIdleResponse implements the generated interface.
func (s idleStream) VisitWatchIdleResponse(w http.ResponseWriter) error {
	ctx, cancel := listen.UntilDraining(s.ctx)
	defer cancel()
	out := respond.NewEventStream(s.ctx, w, respond.EventStreamOptions{WriteTimeout: busyTime})
	if err := out.Flush(); err != nil {
		s.watch.Close()
		return nil // the client has left
	}
	err := s.watch.Follow(ctx, respond.PingInterval, func(e holds.Event) error {
		data, err := json.Marshal(toIdleEvent(e))
		if err != nil {
			return err
		}
		if e == (holds.Event{}) {
			out.Ping()
		} else {
			out.Data(data)
		}
		return out.Flush()
	})
	if ctx.Err() == nil || s.ctx.Err() != nil {
		return err
	}
	// The daemon stops. The time of the last event is over, and not that of the end.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(busyTime)) // it fails when the client has left
	return nil
}

func toIdleEvent(e holds.Event) gen.IdleEvent {
	switch {
	case e.Idle:
		return gen.IdleEvent{Type: gen.IdleEventTypeIdle, WakeAt: timeOrNone(e.WakeAt)}
	case e.Asleep:
		return gen.IdleEvent{Type: gen.IdleEventTypeAsleep, Since: timeOrNone(e.Since), Wake: new(e.Wakes)}
	case e.Awake:
		return gen.IdleEvent{Type: gen.IdleEventTypeAwake}
	}
	return gen.IdleEvent{Type: gen.IdleEventTypeBusy, Kind: new(gen.HoldKind(e.Busy))}
}

// timeOrNone returns a time for an answer, nil for the zero time.
func timeOrNone(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return new(at.UTC())
}
