package serve

import (
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/rules"
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
			if err := checkParameters(op, c); err != nil {
				return err
			}
			if err := checkBody(op.Body, c, s.options.MaxJSONBody); err != nil {
				return err
			}
			return s.runAudited(c, next)
		}
	}
}

func checkParameters(op *rules.Operation, c echo.Context) error {
	r := c.Request()
	// URL.Query drops what it cannot decode. A filter that is silently dropped, or ignored because
	// the operation does not know it, would change the meaning of the request.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Invalid("query: %v", err)
	}
	if name, found := op.UnknownQuery(query); found {
		return Invalid("query parameter %s: unknown parameter; this operation has %s",
			shorten(name), op.QueryNames())
	}
	path, err := pathParameters(c)
	if err != nil {
		return err
	}
	for _, param := range op.Parameters {
		var values []string
		switch param.In {
		case rules.InPath:
			if value := path[param.Name]; value != "" {
				values = []string{value}
			}
		case rules.InQuery:
			values = query[param.Name]
		case rules.InHeader:
			values = r.Header.Values(param.Name)
		}
		// The handler would look at one of several values, and the rule at another.
		if len(values) > 1 && param.Schema.Type != rules.TypeArray {
			return Invalid("%s: must be given only once", placeOf(param))
		}
		if broken := param.CheckText(values); broken != nil {
			return explain(placeOf(param), broken)
		}
	}
	return nil
}

// pathParameters returns the decoded values. The router matches the escaped path
// where the client escaped more than it had to.
func pathParameters(c echo.Context) (map[string]string, error) {
	names := c.ParamNames()
	if len(names) == 0 {
		return nil, nil
	}
	escaped := c.Request().URL.RawPath != ""
	values := make(map[string]string, len(names))
	for i, name := range names {
		value := c.ParamValues()[i]
		if escaped {
			decoded, err := url.PathUnescape(value)
			if err != nil {
				return nil, Invalid("path parameter %s: %v", name, err)
			}
			value = decoded
		}
		values[name] = value
	}
	return values, nil
}

// isJSON reports whether a Content-Type is JSON, by name or by its +json suffix.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == echo.MIMEApplicationJSON || strings.HasSuffix(media, "+json"))
}
