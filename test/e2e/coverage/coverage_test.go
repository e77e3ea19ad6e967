// Package coverage_test holds the documents that the project implements against its tests.
// testdata/*.rows lists the rows of the documents' tables; a test that proves a row says so in the
// name of a subtest:
//
//	t.Run("row lifecycle/configuration/server.host", func(t *testing.T) { ... })
//	t.Run("row lifecycle/configuration/docker.pids_limit: none", func(t *testing.T) { ... })
//
// coverage.md beside this file is generated from both: go test ./test/e2e/coverage -update
package coverage_test

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root = "../../.."
	page = "coverage.md"
)

var update = flag.Bool("update", false, "write coverage.md")

// open are the rows that nothing proves yet, each with what it waits for. A row that a test names
// must leave this list.
var open = map[string]string{}

// row is a line of one of the documents' tables.
type row struct{ document, section, name, text string }

func (r row) id() string { return r.document + "/" + r.section + "/" + r.name }

func TestEveryRowHasATest(t *testing.T) {
	rows, proofs := readRows(t), findProofs(t)
	known := map[string]bool{}
	for _, r := range rows {
		if known[r.id()] {
			t.Errorf("testdata has %s twice", r.id())
		}
		known[r.id()] = true
		reason, isOpen := open[r.id()]
		switch proven := len(proofs[r.id()]) > 0; {
		case !proven && !isOpen:
			t.Errorf("no test names %q", "row "+r.id())
		case proven && isOpen:
			t.Errorf("%s has a test and is still listed as open for %s", r.id(), reason)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(proofs)) {
		if !known[id] {
			t.Errorf("%s names %q, which no document has", proofs[id][0], "row "+id)
		}
	}
	for id := range open {
		if !known[id] {
			t.Errorf("%s is listed as open, and no document has it", id)
		}
	}
	comparePage(t, render(rows, proofs))
}

func comparePage(t *testing.T, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Errorf("test/e2e/coverage/coverage.md is not what the tests say (%v): go test ./test/e2e/coverage -update", err)
	}
}

// readRows reads testdata/*.rows: "== SECTION" lines, and "NAME: TEXT" lines below each.
func readRows(t *testing.T) []row {
	t.Helper()
	var rows []row
	for _, document := range []string{"lifecycle", "execd"} {
		file, err := os.Open(filepath.Join("testdata", document+".rows"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		section := ""
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if title, isTitle := strings.CutPrefix(lines.Text(), "== "); isTitle {
				section = title
				continue
			}
			name, text, complete := strings.Cut(lines.Text(), ": ")
			if !complete || section == "" {
				t.Fatalf("%s: %q is neither a section nor a row", file.Name(), lines.Text())
			}
			rows = append(rows, row{document, section, name, text})
		}
	}
	return rows
}

// findProofs returns, by row, the tests that name it: the string literals that begin with "row " in
// the repository's tests. Those that several packages share are not in files for tests; they import
// testing.
func findProofs(t *testing.T) map[string][]string {
	t.Helper()
	proofs := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || entry.IsDir() {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
			return nil
		}
		for _, declaration := range file.Decls {
			name := nameOf(declaration)
			where := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
			ast.Inspect(declaration, func(node ast.Node) bool {
				if id, found := rowIn(node); found {
					proofs[id] = append(proofs[id], fmt.Sprintf("[%s](%s/%s)", name, root, where))
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return proofs
}

// rowIn returns the row that a string literal names. The literals of this package are none.
func rowIn(node ast.Node) (id string, found bool) {
	literal, isLiteral := node.(*ast.BasicLit)
	if !isLiteral || literal.Kind != token.STRING {
		return "", false
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return "", false
	}
	id, found = strings.CutPrefix(value, "row ")
	id, _, _ = strings.Cut(id, ": ") // what comes then distinguishes several tests of one row
	return id, found && id != ""
}

// nameOf names what a declaration declares, as a reader would look for it.
func nameOf(declaration ast.Decl) string {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if value, isValue := spec.(*ast.ValueSpec); isValue {
				return value.Names[0].Name
			}
		}
	}
	return "a table"
}

func render(rows []row, proofs map[string][]string) string {
	var b strings.Builder
	b.WriteString("# Coverage\n\nEvery row of the tables of the two documents that this project implements, and the tests that name it.\n" +
		"Generated by `go test ./test/e2e/coverage -update`; a row without a test fails that package.\n")
	document, section := "", ""
	for _, r := range rows {
		if r.document != document {
			document, section = r.document, ""
			fmt.Fprintf(&b, "\n## %s\n", document)
		}
		if r.section != section {
			section = r.section
			fmt.Fprintf(&b, "\n### %s: %s\n\n| row | the document says | proven by |\n|---|---|---|\n", document, section)
		}
		tests := slices.Compact(slices.Sorted(slices.Values(proofs[r.id()])))
		shown := strings.Join(tests, ", ")
		if reason, isOpen := open[r.id()]; isOpen {
			shown = "**open**: waits for " + reason
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.name, r.text, shown)
	}
	return b.String()
}
