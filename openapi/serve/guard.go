package serve

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/labstack/echo/v4"
)

// operation is what the guard needs of one operation, worked out once.
type operation struct {
	id      string
	open    bool
	streams bool
	params  []*openapi3.Parameter
	body    *openapi3.RequestBody
	accepts string
}

func operationsOf(doc *openapi3.T) (map[string]*operation, error) {
	operations := make(map[string]*operation)
	for path, item := range doc.Paths.Map() {
		for method, declared := range item.Operations() {
			if declared.OperationID == "" {
				return nil, fmt.Errorf("serve: %s %s has no operationId", method, path)
			}
			if operations[declared.OperationID] != nil {
				return nil, fmt.Errorf("serve: operationId %s is used twice", declared.OperationID)
			}
			operations[declared.OperationID] = newOperation(item, declared)
		}
	}
	return operations, nil
}

func newOperation(item *openapi3.PathItem, declared *openapi3.Operation) *operation {
	op := &operation{
		id: declared.OperationID,
		// Only an explicit `security: []` opens an operation: a document that forgot
		// its global security must not open them all.
		open:    declared.Security != nil && len(*declared.Security) == 0,
		streams: streams(declared),
	}
	for _, ref := range item.Parameters {
		if declared.Parameters.GetByInAndName(ref.Value.In, ref.Value.Name) == nil {
			op.params = append(op.params, ref.Value)
		}
	}
	for _, ref := range declared.Parameters {
		op.params = append(op.params, ref.Value)
	}
	if declared.RequestBody != nil {
		op.body = declared.RequestBody.Value
		op.accepts = strings.Join(slices.Sorted(maps.Keys(op.body.Content)), " or ")
	}
	return op
}

// streams reports whether success is an event stream, which may never end.
func streams(declared *openapi3.Operation) bool {
	for status, ref := range declared.Responses.Map() {
		if strings.HasPrefix(status, "2") && ref.Value.Content["text/event-stream"] != nil {
			return true
		}
	}
	return false
}

// guard lets only those requests through to the handler that carry a key, keep to
// its rate and fulfil the contract. The key comes first: nobody without one learns about the contract or
// makes the service read a body.
func (s *Server) guard(op *operation) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			if state := stateOf(r.Context()); state != nil {
				state.operation, state.quiet = op.id, s.quiet(op.id)
			}
			if !op.open {
				if err := s.authenticate(r); err != nil {
					return err
				}
				if err := s.checkRate(r); err != nil {
					return err
				}
				s.admit(c)
			}
			if op.streams && r.Method == http.MethodHead {
				c.Response().Header().Set(echo.HeaderAllow, http.MethodGet)
				return echo.ErrMethodNotAllowed
			}
			if err := op.checkParameters(c); err != nil {
				return err
			}
			if err := op.checkBody(c, s.options.MaxJSONBody); err != nil {
				return err
			}
			return s.act(c, next)
		}
	}
}

func (op *operation) checkParameters(c echo.Context) error {
	r := c.Request()
	// URL.Query drops what it cannot decode; a filter that silently vanishes would
	// answer a question nobody asked. An operation without parameters there ignores
	// whatever comes.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil && op.asksQuery() {
		return Invalid("query: %v", err)
	}
	path, err := pathParameters(c)
	if err != nil {
		return err
	}
	input := &openapi3filter.RequestValidationInput{
		Request:     r,
		PathParams:  path,
		QueryParams: query,
		// A default would be written into the URL, where the handler could not tell it
		// from what the client sent. Services apply defaults themselves.
		Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	for _, param := range op.params {
		if repeated(param, query, r.Header) {
			return Invalid("%s: must be given only once", placeOf(param))
		}
		if err := openapi3filter.ValidateParameter(r.Context(), input, param); err != nil {
			return explainParameter(param, err)
		}
	}
	return nil
}

func (op *operation) asksQuery() bool {
	return slices.ContainsFunc(op.params, func(p *openapi3.Parameter) bool { return p.In == openapi3.ParameterInQuery })
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

// repeated reports whether a parameter that takes one value was given several:
// validation would look at one of them and the handler at another.
func repeated(param *openapi3.Parameter, query url.Values, header http.Header) bool {
	if param.Schema != nil && param.Schema.Value.Type.Is(openapi3.TypeArray) {
		return false
	}
	switch param.In {
	case openapi3.ParameterInQuery:
		return len(query[param.Name]) > 1
	case openapi3.ParameterInHeader:
		return len(header.Values(param.Name)) > 1
	}
	return false
}

// isJSON reports whether a Content-Type is JSON, by name or by its +json suffix.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == echo.MIMEApplicationJSON || strings.HasSuffix(media, "+json"))
}
