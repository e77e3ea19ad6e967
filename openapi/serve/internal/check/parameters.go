// Package check holds a request against the rules of its operation.
package check

import (
	"net/url"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve/internal/problem"
)

// Parameters checks those of the path, the query and the header.
func Parameters(op *rules.Operation, c echo.Context) error {
	r := c.Request()
	// URL.Query drops what it cannot decode. A filter that is silently dropped, or ignored because
	// the operation does not know it, would change the meaning of the request.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.Invalid("query: %v", err)
	}
	if name, found := op.UnknownQuery(query); found {
		return problem.Invalid("query parameter %s: unknown parameter; this operation has %s",
			Shorten(name), op.QueryNames())
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
			return problem.Invalid("%s: must be given only once", placeOf(param))
		}
		if broken := param.CheckText(values); broken != nil {
			return Explain(placeOf(param), broken)
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
				return nil, problem.Invalid("path parameter %s: %v", name, err)
			}
			value = decoded
		}
		values[name] = value
	}
	return values, nil
}
