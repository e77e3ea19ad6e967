package api

import (
	"context"
	"io"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

func (h *handlers) GetLogs(
	ctx context.Context, request gen.GetLogsRequestObject,
) (gen.GetLogsResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	options := lifecycle.LogOptions{Tail: request.Params.Tail, Follow: value(request.Params.Follow)}
	if since := request.Params.Since; since != nil {
		options.Since = *since
	}
	// The body of a HEAD is discarded: it must not wait for the end of a log.
	options.Follow = options.Follow && serve.Request(ctx).Method != http.MethodHead
	return logAnswer{ctx, h.backend, request.SandboxID, options}, nil
}

// logAnswer is the response with a log, which the backend writes as output arrives.
type logAnswer struct {
	ctx     context.Context
	backend lifecycle.Backend
	id      string
	options lifecycle.LogOptions
}

// VisitGetLogsResponse implements the generated interface.
func (a logAnswer) VisitGetLogsResponse(w http.ResponseWriter) error {
	ctx, cancel := listen.UntilDraining(a.ctx)
	defer cancel()
	opened := false
	err := a.backend.Logs(ctx, a.id, a.options, func() io.Writer {
		opened = true
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		// the output of a sandbox is never an HTML page
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
		out := flushingWriter{respond.BoundedWriter(w, 0), http.NewResponseController(w)}
		_ = out.controller.Flush() // a disconnected client causes an error at the first write
		return out
	})
	stopping := ctx.Err() != nil && a.ctx.Err() == nil
	if stopping && (err != nil || opened && a.options.Follow) {
		// The backend may have ended without an error, as for a sandbox that never started.
		return context.Cause(ctx)
	}
	return err
}

// flushingWriter flushes every write: the client may be following the log.
type flushingWriter struct {
	w          io.Writer
	controller *http.ResponseController
}

func (f flushingWriter) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.controller.Flush()
}
