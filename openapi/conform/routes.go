package conform

import (
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// pathParameter matches a parameter as a router writes it.
var pathParameter = regexp.MustCompile(`:(\w+)`)

// Routes compares the routes that a service registered, each written as
// "GET /v1/sandboxes/:sandboxId", with its contract. It returns the routes that the
// contract has and the service lacks, and those that the service has and neither the
// contract nor the outside paths allow; both sorted. Outside paths mean what they mean
// to [New].
func Routes(doc *openapi3.T, registered []string, outside ...string) (missing, extra []string) {
	declared := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			declared[method+" "+path] = true
		}
	}
	served := map[string]bool{}
	for _, route := range registered {
		method, path, _ := strings.Cut(route, " ")
		served[method+" "+pathParameter.ReplaceAllString(path, "{$1}")] = true
	}
	for route := range declared {
		if !served[route] {
			missing = append(missing, route)
		}
	}
	for route := range served {
		_, path, _ := strings.Cut(route, " ")
		if !declared[route] && !paths(outside).cover(path) {
			extra = append(extra, route)
		}
	}
	slices.Sort(missing)
	slices.Sort(extra)
	return missing, extra
}

// paths are paths that a contract does not govern.
type paths []string

func (p paths) cover(path string) bool {
	return slices.ContainsFunc(p, func(entry string) bool {
		return path == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(path, entry)
	})
}
