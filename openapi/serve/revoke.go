package serve

import (
	"context"
	"net/http"
)

// revocable makes the request one that [EndWith] can end, where the service has such keys. The
// caller calls done when it has been answered.
func (s *Server) revocable(r *http.Request) (_ *http.Request, end context.CancelCauseFunc, done func()) {
	if !s.options.Revocable {
		return r, nil, func() {}
	}
	ctx, end := context.WithCancelCause(r.Context())
	return r.WithContext(ctx), end, func() { end(nil) }
}

// EndWith ends the context of the request that ctx belongs to when alive ends, with a cause. It is
// for what lets a request in and may cease to be valid while the request is answered, of a service
// with [Options.Revocable]. With a nil alive it does nothing.
func EndWith(ctx, alive context.Context, cause error) {
	state := stateOf(ctx)
	if alive == nil || state == nil || state.end == nil {
		return
	}
	end := state.end
	forget := context.AfterFunc(alive, func() { end(cause) })
	context.AfterFunc(ctx, func() { forget() })
}
