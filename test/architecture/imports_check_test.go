package architecture_test

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// made builds a graph from lines "package: import import". Names with a "~" in front
// are ours.
func made(lines ...string) map[string]listed {
	graph := make(map[string]listed)
	for _, line := range lines {
		name, imports, _ := strings.Cut(strings.ReplaceAll(line, "~", module+"/"), ":")
		graph[name] = listed{
			ImportPath: name,
			Name:       path.Base(name),
			Imports:    strings.Fields(imports),
		}
	}
	for _, name := range []string{"net/http", "context"} {
		graph[name] = listed{ImportPath: name, Name: path.Base(name), Standard: true}
	}
	return graph
}

// TestArchitectureCheckFinds proves that the check fails, for each kind of rule.
func TestArchitectureCheckFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		graph map[string]listed
		want  []string // the start of each violation; none if there is no violation
	}{
		"no violation": {
			graph: made(
				"~server/lifecycle: context",
				"~runtime/engine: context",
				"~runtime/docker: ~runtime/engine github.com/docker/docker/client",
				"~server/host: ~server/lifecycle",
				"~server/box: ~server/lifecycle ~runtime/engine",
				"~server/store: ~server/lifecycle modernc.org/sqlite",
				"~server/app: ~server/host ~server/box ~server/store ~runtime/docker",
				"~server/cmd/sandbox-server: ~server/app",
				"~gen/execd: github.com/labstack/echo/v4 net/http",
				"~execd/proxy: net/http",
				"~execd/api: ~gen/execd ~execd/proxy",
			),
		},
		"a rule without an implementation": {
			graph: made("~server/lifecycle: ~runtime/engine", "~runtime/engine:"),
			want:  []string{"server/lifecycle: links sandbox.internal/runtime/engine"},
		},
		"a library that only another package may import": {
			graph: made("~server/app: modernc.org/sqlite", "modernc.org/sqlite:"),
			want:  []string{"server/app: imports modernc.org/sqlite, which only server/store may import"},
		},
		"an exception": {
			graph: made("~server/app: ~runtime/docker", "~runtime/docker: github.com/docker/docker/client", "github.com/docker/docker/client:"),
		},
		"no exception": {
			graph: made("~server/api: ~runtime/docker", "~runtime/docker: github.com/docker/docker/client", "github.com/docker/docker/client:"),
			want:  []string{"server/api: links sandbox.internal/runtime/docker"},
		},
		"a forbidden link through a library": {
			graph: made("~execd/files: example.com/archive", "example.com/archive: github.com/docker/docker/pkg", "github.com/docker/docker/pkg:"),
			want: []string{"execd/files: links github.com/docker/docker/pkg (sandbox.internal/execd/files -> example.com/archive -> github.com/docker/docker/pkg): " +
				"programs inside"},
		},
		"the other half, from inside": {
			graph: made("~execd/api: ~server/lifecycle", "~server/lifecycle:"),
			want:  []string{"execd/api: links sandbox.internal/server/lifecycle"},
		},
		"the other half, from outside": {
			graph: made("~server/app: ~execd/config", "~execd/config:"),
			want:  []string{"server/app: links sandbox.internal/execd/config"},
		},
		"an adapter that knows the API": {
			graph: made("~runtime/jupyter: ~gen/execd", "~gen/execd:"),
			want:  []string{"runtime/jupyter: links sandbox.internal/gen/execd"},
		},
		"a client that knows the service": {
			graph: made("~clients/cli: ~server/config", "~server/config:"),
			want:  []string{"clients/cli: links sandbox.internal/server/config"},
		},
		"a similar name is not below the tree": {
			graph: made("~server/config: github.com/dockerish/x k8s.iox/y"),
		},
		"a package without a topic": {
			graph: made("~gen/util:"),
			want:  []string{`gen/util: a package named "util"`},
		},
		"an end-to-end test that imports execd": {
			graph: map[string]listed{module + "/test/e2e": {
				ImportPath: module + "/test/e2e", Name: "e2e",
				TestImports:  []string{module + "/gen/execd"},
				XTestImports: []string{module + "/test/e2e", module + "/execd/command"},
			}},
			want: []string{"test/e2e: links sandbox.internal/execd/command"},
		},
		"a test elsewhere may": {
			graph: map[string]listed{module + "/server/host": {
				ImportPath: module + "/server/host", Name: "host",
				XTestImports: []string{module + "/server/store", module + "/execd/command"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := projectRules.violations(tc.graph)
			if !slices.EqualFunc(got, tc.want, strings.HasPrefix) {
				t.Fatalf(
					"violations\n\t%s\nwant\n\t%s",
					strings.Join(got, "\n\t"),
					strings.Join(tc.want, "\n\t"),
				)
			}
		})
	}
}
