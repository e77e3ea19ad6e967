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
		started := time.Now()
		// Deferred, because an aborted response leaves by a panic.
		defer func() { s.accessLine(c, time.Since(started)) }()
		if err := next(c); err != nil {
			s.writeError(err, c)
		}
		return nil
	}
}

func (s *Server) accessLine(c echo.Context, took time.Duration) {
	r, response := c.Request(), c.Response()
	state := stateOf(r.Context())

	level := zerolog.InfoLevel
	switch {
	case response.Status >= http.StatusInternalServerError:
		level = zerolog.ErrorLevel
	case response.Status < http.StatusBadRequest && s.quiet(state.operation):
		level = zerolog.DebugLevel
	}
	line := zerolog.Ctx(r.Context()).WithLevel(level)
	if !line.Enabled() {
		return
	}
	line = line.Str("method", r.Method).
		Str("path", r.URL.Path).
		Str("route", c.Path()).
		Str("operation", state.operation).
		Int("status", response.Status).
		Int64("bytes", response.Size).
		Float64("duration_ms", float64(took.Microseconds())/1000).
		Str("remote", remoteHost(r.RemoteAddr))
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
