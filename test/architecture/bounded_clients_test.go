package architecture_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// endlessClients are files of tests that send requests without a Timeout, and what bounds these.
var endlessClients = map[string]string{
	"test/e2e/conformance/stream.go": "the context of the request: streams may last as long as a test",
	"test/e2e/clients/ogen/main.go":  "the context of the program",
}

// TestClientsOfTestsAreBounded: a request of a test ends although its server does not respond, so
// that a defect fails one test and not its package. Files with the clock of testing/synctest need
// no bound: that reports a deadlock.
func TestClientsOfTestsAreBounded(t *testing.T) {
	atRoot(t)
	found := make(map[string]bool)
	eachGoFile(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		lines := endlessClientsIn(files, file)
		found[name] = len(lines) > 0
		if endlessClients[name] != "" {
			return
		}
		for _, line := range lines {
			t.Errorf("%s:%d: an HTTP client without a Timeout: use wait.Client or wait.Patience", name, line)
		}
	})
	for name := range endlessClients {
		if !found[name] {
			t.Errorf("%s sends no request without a Timeout: remove it from endlessClients", name)
		}
	}
}

// TestEndlessClientsAreFound proves that TestClientsOfTestsAreBounded can fail.
func TestEndlessClientsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`var c = &http.Client{}`:                                 1,
		`var c = http.Client{Transport: x}`:                      1,
		`var c = &http.Client{Timeout: 1}`:                       0,
		`var c = http.DefaultClient`:                             1,
		`func f() { http.Get("") }`:                              1,
		`func f(c *http.Client) {}`:                              0,
		"import \"testing/synctest\"\nvar c = &http.Client{}":    0,
		`type t struct { c *http.Client }; var h http.Handler`:   0,
		`func f() { x := &http.Transport{}; http.NewServeMux()}`: 0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "p_test.go", "package p\nimport \"net/http\"\n"+source,
			parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := endlessClientsIn(files, file); len(got) != want {
			t.Errorf("%s: found %v, want %d", source, got, want)
		}
	}
}

// endlessClientsIn returns the lines on which a client of net/http has no Timeout.
func endlessClientsIn(files *token.FileSet, file *ast.File) (lines []int) {
	imports := make(map[string]string)
	for _, spec := range file.Imports {
		switch spec.Path.Value {
		case `"testing/synctest"`:
			return nil
		case `"net/http"`:
			imports["http"] = "net/http"
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		endless := false
		switch n := node.(type) {
		case *ast.CompositeLit:
			if s, ok := n.Type.(*ast.SelectorExpr); ok {
				from, name := selected(s, imports)
				endless = from == "net/http" && name == "Client" && !slices.ContainsFunc(n.Elts, isTimeout)
			}
		case *ast.SelectorExpr:
			from, name := selected(n, imports)
			endless = from == "net/http" && slices.Contains([]string{"DefaultClient", "Get", "Head", "Post", "PostForm"}, name)
		}
		if endless {
			lines = append(lines, files.Position(node.Pos()).Line)
		}
		return true
	})
	return lines
}

func isTimeout(element ast.Expr) bool {
	pair, ok := element.(*ast.KeyValueExpr)
	if !ok {
		return false
	}
	key, ok := pair.Key.(*ast.Ident)
	return ok && key.Name == "Timeout"
}
