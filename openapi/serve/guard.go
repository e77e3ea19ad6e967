package serve

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve/internal/check"
)

// guard passes only those requests to the handler that carry a key, keep to its rate and fulfil the
// contract. The key comes first: a client without one gets no information about the contract or
// makes the service read a body.
func (s *Server) guard(op *rules.Operation) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			if state := stateOf(r.Context()); state != nil {
				state.operation, state.quiet = op.ID, s.quiet(op.ID)
			}
			if !op.Open {
				if err := s.authenticate(r); err != nil {
					return err
				}
				if err := s.checkRate(r); err != nil {
					return err
				}
				s.admit(c)
			}
			if op.Streams && r.Method == http.MethodHead {
				c.Response().Header().Set(echo.HeaderAllow, http.MethodGet)
				return echo.ErrMethodNotAllowed
			}
			if err := check.Parameters(op, c); err != nil {
				return err
			}
			if err := checkBody(op.Body, c, s.options.MaxJSONBody); err != nil {
				return err
			}
			return s.runAudited(c, next)
		}
	}
}
