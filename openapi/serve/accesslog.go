package serve

import (
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
)

// logAccess writes one line per request, at its end: for a stream that is when the
// stream ends. It never logs headers, the query, bodies or the path itself, because
// they carry keys, tokens and users' data; the route stands for the path. Errors are
// turned into their answer here, so that the line tells the status that was sent.
func (s *Server) logAccess(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		started := time.Now()
		s.observeBegin(c)
		// Deferred, because an aborted response leaves by a panic.
		defer func() {
			s.conclude(c)
			took := time.Since(started)
			s.observeEnd(c, took)
			s.accessLine(c, took)
		}()
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
	case response.Status >= http.StatusBadRequest && response.Status != statusClientGone && s.options.WarnRefusals:
		level = zerolog.WarnLevel
	case response.Status < http.StatusBadRequest && state.quiet:
		level = zerolog.DebugLevel
	}
	line := zerolog.Ctx(r.Context()).WithLevel(level)
	if !line.Enabled() {
		return
	}
	line = line.Str("method", r.Method).
		Str("route", c.Path()).
		Str("operation", state.operation).
		Int("status", response.Status).
		Int64("bytes", response.Size).
		Float64("duration_ms", float64(took.Microseconds())/1000).
		Str("remote", remoteHost(r.RemoteAddr))
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
