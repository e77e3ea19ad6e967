package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// maxActivity bounds a list of the daemon, in bytes: 1 MiB of text, each byte of which may be
// escaped as six, and what is around it.
const maxActivity = 8 << 20

func (h *handlers) GetActivity(
	ctx context.Context, request gen.GetActivityRequestObject,
) (gen.GetActivityResponseObject, error) {
	return h.activity(ctx, request.SandboxID, "application/json")
}

func (h *handlers) WatchActivity(
	ctx context.Context, request gen.WatchActivityRequestObject,
) (gen.WatchActivityResponseObject, error) {
	if _, err := serve.LastEventID(request.Params.LastEventID); err != nil {
		return nil, err
	}
	return h.activity(ctx, request.SandboxID, respond.MIMEEventStream)
}

// activity checks who asks, and where the daemon of the sandbox is.
func (h *handlers) activity(ctx context.Context, id, media string) (activityAnswer, error) {
	sandbox, err := h.authorized(ctx, id, lifecycle.Principal.CanRead)
	if err != nil {
		return activityAnswer{}, err
	}
	if state := sandbox.Status.State; state != lifecycle.StateRunning { // it is no reason to wake one that sleeps
		return activityAnswer{}, notRunning(state)
	}
	location, err := h.locate(ctx, sandbox, lifecycle.DaemonPort)
	return activityAnswer{ctx: ctx, handlers: h, id: id, location: location, media: media}, err
}

// activityAnswer is the answer of a sandbox's daemon, as it comes. Whatever has taken the daemon's
// place may send anything: it is of the media type that was asked for, or it is refused.
type activityAnswer struct {
	ctx      context.Context
	handlers *handlers
	id       string
	location lifecycle.Location
	media    string
}

// VisitGetActivityResponse implements the generated interface.
func (a activityAnswer) VisitGetActivityResponse(w http.ResponseWriter) error { return a.serve(w) }

// VisitGetHoldsResponse implements the generated interface.
func (a activityAnswer) VisitGetHoldsResponse(w http.ResponseWriter) error { return a.serve(w) }

// VisitWatchActivityResponse implements the generated interface.
func (a activityAnswer) VisitWatchActivityResponse(w http.ResponseWriter) error { return a.serve(w) }

func (a activityAnswer) serve(w http.ResponseWriter) error {
	ctx, cancel := listen.UntilDraining(a.ctx)
	defer cancel()
	caller := serve.Request(a.ctx)
	r := caller.Clone(ctx)
	r.Header = http.Header{"Accept": {a.media}}
	for _, name := range []string{"Last-Event-Id", "User-Agent", "X-Request-Id"} {
		if value := caller.Header.Get(name); value != "" { // the daemon refuses an empty one
			r.Header[name] = []string{value}
		}
	}
	err := a.handlers.proxy.Forward(w, r, proxy.Target{
		Address:      a.location.Daemon,
		Prefix:       "/v1/sandboxes/" + a.id,
		Set:          map[string]string{lifecycle.TokenHeader: a.location.Token},
		SharedOrigin: true,
		Inspect:      a.inspect,
	})
	if err != nil && (isNoAnswer(err) || errors.Is(err, errOtherAnswer)) {
		return a.handlers.notAnswering(a.ctx, a.id, lifecycle.DaemonPort, err)
	}
	return err
}

// errOtherAnswer is an answer that the contract of the daemon does not have.
var errOtherAnswer = errors.New("another answer than the contract's")

// inspect refuses every answer but the one that was asked for.
func (a activityAnswer) inspect(response *http.Response) error {
	if err := reach.Inspect(response); err != nil {
		return err
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode == http.StatusNotFound:
		return lifecycle.Unsupportedf(
			"the daemon of sandbox %s does not have this operation: the daemon is of an earlier release", a.id)
	case response.StatusCode != http.StatusOK || kind != a.media:
		return fmt.Errorf("%w: %d, %.40q", errOtherAnswer, response.StatusCode, kind)
	}
	response.Header.Set("X-Content-Type-Options", "nosniff")
	if a.media != respond.MIMEEventStream {
		response.Body = boundedBody{io.LimitReader(response.Body, maxActivity), response.Body}
	}
	return nil
}

// boundedBody is the beginning of a body. A client finds what is longer to be no JSON.
type boundedBody struct {
	io.Reader
	io.Closer
}
