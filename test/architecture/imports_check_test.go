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
		"an import that the rule does not permit": {
			graph: made("~server/host: ~server/config", "~server/config:"),
			want:  []string{"server/host: imports server/config; of ours it may import server/clock, server/lifecycle"},
		},
		"a rule without imports": {
			graph: made("~server/lifecycle: ~runtime/engine", "~runtime/engine:"),
			want:  []string{"server/lifecycle: imports runtime/engine; of ours it may import nothing"},
		},
		"a library where only the standard library is permitted": {
			graph: made("~server/lifecycle: context github.com/google/uuid", "github.com/google/uuid:"),
			want:  []string{"server/lifecycle: imports github.com/google/uuid; besides the standard library it may import nothing"},
		},
		"a library beside the allowed ones": {
			graph: made("~gen/lifecycle: github.com/labstack/echo/v4 github.com/rs/zerolog"),
			want:  []string{"gen/lifecycle: imports github.com/rs/zerolog; besides the standard library it may import github.com/oapi-codegen/runtime, "},
		},
		"a library that only another package may import": {
			graph: made("~server/app: github.com/docker/docker/client", "github.com/docker/docker/client:"),
			want:  []string{"server/app: imports github.com/docker/docker/client, which only runtime/docker may import"},
		},
		"a forbidden link through a library": {
			graph: made("~execd/files: example.com/archive", "example.com/archive: github.com/docker/docker/pkg", "github.com/docker/docker/pkg:"),
			want: []string{"execd/files: links github.com/docker/docker/pkg (sandbox.internal/execd/files -> example.com/archive -> github.com/docker/docker/pkg): " +
				"execd is the half inside"},
		},
		"the other half, from inside": {
			graph: made("~execd/command: ~server/lifecycle", "~server/lifecycle:"),
			want:  []string{"execd/command: links sandbox.internal/server/lifecycle", "execd/command: imports server/lifecycle"},
		},
		"the other half, from outside": {
			graph: made("~server/app: ~execd/config", "~execd/config:"),
			want:  []string{"server/app: links sandbox.internal/execd/config", "server/app: imports execd/config"},
		},
		"a similar name is not below the tree": {
			graph: made("~server/config: github.com/dockerish/x k8s.iox/y"),
		},
		"a package without a rule": {
			graph: made("~server/billing:"),
			want:  []string{"server/billing: has no rule: add one to projectRules.packages in test/architecture/packages_test.go"},
		},
		"a package below one with a rule": {
			graph: made("~server/host/pool:"),
			want:  []string{"server/host/pool: has no rule"},
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
			want: []string{"test/e2e: imports execd/command"},
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

func TestArchitectureCheckFindsTwoRules(t *testing.T) {
	twice := importRules{
		packages: []packageRule{{packages: []string{"gen/..."}}, {packages: []string{"gen/execd"}}},
	}
	got := twice.violations(made("~gen/execd:"))
	if len(got) != 1 || !strings.HasPrefix(got[0], "gen/execd: has 2 rules") {
		t.Fatalf("violations %q", got)
	}
}
