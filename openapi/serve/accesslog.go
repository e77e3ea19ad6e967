package serve

import (
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve/internal/problem"
)

// maxLoggedMethod bounds what the log has of a method, in bytes: a client may send one as long as
// the whole header of a request.
const maxLoggedMethod = 64

// logAccess writes one line per request, at its end: for a stream that is when the
// stream ends. It never logs headers, the query, bodies or the path itself, because
// they carry keys, tokens and users' data; the route stands for the path. Errors are
// turned into their answer here, so that the line has the status that was sent.
func (s *Server) logAccess(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		s.observeBegin(c)
		returned := false
		// Deferred, because an aborted response leaves by a panic.
		defer func() {
			r, response := c.Request(), c.Response()
			state := stateOf(r.Context())
			// A copy: c is another request's by the time at which a stream ends.
			state.line = accessLine{method: r.Method, route: c.Path(), remote: r.RemoteAddr,
				status: response.Status, bytes: response.Size}
			if state.rest == nil || !returned {
				s.finish(state, zerolog.Ctx(r.Context()))
			}
		}()
		if err := next(c); err != nil {
			s.writeError(err, c)
		}
		returned = true
		return nil
	}
}

// accessLine has the fields of HTTP of a request's line in the log.
type accessLine struct {
	method, route, remote string
	status                int
	bytes                 int64
}

// finish reports a request whose answer is complete or given up.
func (s *Server) finish(state *requestState, logger *zerolog.Logger) {
	took := time.Since(state.began)
	s.conclude(state)
	s.observeEnd(state, took)
	access := &state.line
	level := zerolog.InfoLevel
	switch {
	case access.status >= http.StatusInternalServerError:
		level = zerolog.ErrorLevel
	case access.status >= http.StatusBadRequest && access.status != problem.StatusClientGone &&
		s.options.WarnRefusals:
		level = zerolog.WarnLevel
	case access.status < http.StatusBadRequest && state.quiet:
		level = zerolog.DebugLevel
	}
	line := logger.WithLevel(level)
	if !line.Enabled() {
		return
	}
	line = line.Str("method", access.method[:min(len(access.method), maxLoggedMethod)]).
		Str("route", access.route).
		Str("operation", state.operation).
		Int("status", access.status).
		Int64("bytes", access.bytes).
		Float64("duration_ms", float64(took.Microseconds())/1000).
		Str("remote", remoteHost(access.remote))
	if state.stream {
		line = line.Bool("stream", true)
	}
	if state.code != "" {
		line = line.Str("code", state.code)
	}
	state.annotate(line).Msg("request")
}

func remoteHost(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
