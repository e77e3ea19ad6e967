package serve

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"

	"sandbox.internal/openapi/serve/respond"
)

// StreamEvents answers with an event stream whose events are written after the
// handler has returned, when its stack, the request's body and echo's context are
// gone: a stream waits for most of its life, and there may be a thousand of them.
//
// ctx and w are the handler's. The header is written at once, as any handler's. write
// gets a context that ends with the same request and has [listen.Draining] but none of the
// request's other values. An error of write can no longer be answered: it is logged,
// and the connection is cut, so that the client does not take what it has for the
// whole. So it is when the context has ended. A request has one such stream at most.
// Outside of a [Server] it is written before StreamEvents returns.
func StreamEvents(ctx context.Context, w http.ResponseWriter,
	write func(context.Context, *respond.EventStream) error) error {
	respond.StartEvents(w)
	if state := stateOf(ctx); state != nil {
		state.rest = write
		return nil
	}
	return write(ctx, respond.Continue(ctx, w))
}

// proceed writes the rest of a response, and its line in the access log. r is the
// request as net/http gave it: what the handlers added to it is released.
func (s *Server) proceed(state *requestState, w http.ResponseWriter, r *http.Request) {
	rest := state.rest
	state.request, state.body, state.json, state.rest = nil, nil, nil, nil
	counting := &countingWriter{ResponseWriter: w}
	// Deferred, because an aborted response leaves by a panic.
	defer func() { s.settle(state, r.Context(), counting.bytes, recover()) }()
	err := rest(r.Context(), respond.Continue(r.Context(), counting))
	if err == nil && r.Context().Err() != nil {
		err = http.ErrAbortHandler // it may not have been able to write everything
	}
	if err != nil {
		panic(err)
	}
}

// settle records how a response ended, and closes its connection if cause is an error.
func (s *Server) settle(state *requestState, ctx context.Context, bytes int64, cause any) {
	logger := s.logger(state)
	if cause != nil {
		err, isError := cause.(error)
		var exception interface{ RuntimeError() }
		if !isError || errors.As(err, &exception) {
			err = &panicError{value: cause, stack: debug.Stack()}
		}
		if !errors.Is(err, http.ErrAbortHandler) {
			state.code = s.options.InternalCode
			logFailure(logger.WithContext(ctx), err, http.StatusInternalServerError, true)
		}
		defer panic(http.ErrAbortHandler)
	}
	state.line.bytes = bytes
	s.finish(state, &logger)
}

// countingWriter counts the bytes of a response's body.
type countingWriter struct {
	http.ResponseWriter
	bytes int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Unwrap gives [http.ResponseController] access to the wrapped writer.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
