package serve

import (
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
)

// logAccess writes one line per request, at its end. It never logs headers, the
// query or bodies, because they carry keys, tokens and users' data. Errors are
// turned into their answer here, so that the line tells the status that was sent.
func (s *Server) logAccess(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		// Deferred, because an aborted response leaves by a panic.
		defer func() {
			r, response := c.Request(), c.Response()
			state := stateOf(r.Context())
			state.line = accessLine{method: r.Method, path: r.URL.Path, route: c.Path(), remote: r.RemoteAddr, status: response.Status, bytes: response.Size}
			if state.rest == nil {
				s.logLine(zerolog.Ctx(r.Context()), state)
			}
		}()
		if err := next(c); err != nil {
			s.writeError(err, c)
		}
		return nil
	}
}

// accessLine is what a request's line in the log tells of HTTP.
type accessLine struct {
	method, path, route, remote string
	status                      int
	bytes                       int64
}

func (s *Server) logLine(logger *zerolog.Logger, state *requestState) {
	access := &state.line
	level := zerolog.InfoLevel
	switch {
	case access.status >= http.StatusInternalServerError:
		level = zerolog.ErrorLevel
	case access.status < http.StatusBadRequest && s.quiet(state.operation):
		level = zerolog.DebugLevel
	}
	line := logger.WithLevel(level)
	if !line.Enabled() {
		return
	}
	line = line.Str("method", access.method).
		Str("path", access.path).
		Str("route", access.route).
		Str("operation", state.operation).
		Int("status", access.status).
		Int64("bytes", access.bytes).
		Float64("duration_ms", float64(time.Since(state.began).Microseconds())/1000).
		Str("remote", remoteHost(access.remote))
	if state.code != "" {
		line = line.Str("code", state.code)
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	for _, field := range state.fields {
		line = line.Interface(field.key, field.value)
	}
	line.Msg("request")
}

func remoteHost(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
