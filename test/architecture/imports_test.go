package architecture_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is the path of this module, which tables leave out in front of our packages.
const module = "sandbox.internal"

// listed is what `go list -json` prints of a package.
type listed struct {
	ImportPath   string
	Name         string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// TestArchitecture compares the imports of this repository with the rules of packages_test.go.
func TestArchitecture(t *testing.T) {
	atRoot(t)
	watchSources(t)
	for _, violation := range projectRules.violations(list(t)) {
		t.Error(violation)
	}
}

// list asks the go command for every package of ours and everything they link.
func list(t *testing.T) map[string]listed {
	t.Helper()
	var stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-json=ImportPath,Name,Standard,Imports,TestImports,XTestImports", module+"/...")
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, &stderr)
	}
	graph := make(map[string]listed)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return graph
		case err != nil:
			t.Fatalf("%s: %v", command, err)
		}
		graph[p.ImportPath] = p
	}
}

// watchSources opens every directory with sources. The go command remembers a passed test
// until a file that the test opened has changed. It does not record what a child process
// read, and would repeat the old result for a new import.
func watchSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && name != "." &&
			(strings.HasPrefix(entry.Name(), ".") || name == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// violations reports every breach of the rules in a graph of packages, in the order of their paths.
func (r importRules) violations(graph map[string]listed) []string {
	var found []string
	report := func(p, format string, args ...any) {
		found = append(found, p+": "+fmt.Sprintf(format, args...))
	}
	for _, importPath := range slices.Sorted(maps.Keys(graph)) {
		p, ours := own(importPath)
		if !ours {
			continue
		}
		node := graph[importPath]
		for _, name := range []string{path.Base(p), node.Name} {
			if slices.Contains(r.names, name) {
				report(
					p,
					"a package named %q has a name without a topic: name it after what it does",
					name,
				)
				break
			}
		}
		r.checkLibraries(p, node, report)
		r.checkForbidden(p, graph, report)
	}
	return found
}

type reporter func(p, format string, args ...any)

// checkLibraries finds libraries that a package imports without permission.
func (r importRules) checkLibraries(p string, node listed, report reporter) {
	for _, rule := range r.libraries {
		if matchesAny(rule.packages, p) {
			continue
		}
		for _, imported := range node.Imports {
			if belowAny(rule.libraries, imported) {
				report(
					p,
					"imports %s, which only %s may import",
					imported,
					strings.Join(rule.packages, " and "),
				)
			}
		}
	}
}

// checkForbidden finds what a package must not link, directly or through others.
func (r importRules) checkForbidden(p string, graph map[string]listed, report reporter) {
	for _, rule := range r.forbidden {
		if !matchesAny(rule.packages, p) || matchesAny(rule.except, p) {
			continue
		}
		node := graph[path.Join(module, p)]
		first := node.Imports
		if rule.tests {
			first = slices.Concat(first, node.TestImports, node.XTestImports)
		}
		chain := shortestChain(graph, path.Join(module, p), first, func(linked string) bool {
			name, ours := own(linked)
			return ours && matchesAny(rule.ours, name) || !ours && belowAny(rule.libraries, linked)
		})
		if chain != nil {
			report(
				p,
				"links %s (%s): %s",
				chain[len(chain)-1],
				strings.Join(chain, " -> "),
				rule.why,
			)
		}
	}
}

// shortestChain returns the shortest chain of imports from a package, which begins with the imports
// that are given, to one that is unwanted; nil when there is none.
func shortestChain(graph map[string]listed, from string, imports []string, unwanted func(string) bool) []string {
	cameFrom := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from && unwanted(at) {
			var chain []string
			for ; at != ""; at = cameFrom[at] {
				chain = append(chain, at)
			}
			slices.Reverse(chain)
			return chain
		}
		if at != from {
			imports = graph[at].Imports
		}
		for _, next := range imports {
			if _, seen := cameFrom[next]; !seen {
				cameFrom[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// own reports whether a package is ours, and returns its path below the module; "." is the root.
func own(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// matchesAny reads patterns as the go command does: "a" is one package, "a/..." is that
// package and all below it.
func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
			return belowAny([]string{tree}, p)
		}
		return pattern == p
	})
}

func belowAny(trees []string, p string) bool {
	return slices.ContainsFunc(
		trees,
		func(tree string) bool { return p == tree || strings.HasPrefix(p, tree+"/") },
	)
}
