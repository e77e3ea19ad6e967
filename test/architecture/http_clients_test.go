package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// httpConstructor is the one package that makes HTTP clients.
const httpConstructor = "wire/sandboxhttp"

// httpExceptions are packages that use net/http's clients by themselves, and why that is right.
// Programs that only tests and the bench run are not checked.
var httpExceptions = map[string]string{
	httpConstructor:       "it is the constructor",
	"server/mcphttp":      "calls the service's own handler, in process, and follows no redirection",
	"server/proxy":        "passes answers on to the client that asked, as they are, and follows no redirection",
	"clients/cli/forward": "passes answers on to the client of a local port, as they are, and follows no redirection",
	"execd/proxy":         "the same, inside the sandbox",
	"runtime/oci/images":  "asks registries, which redirect to where layers lie; it bounds what it reads, checks digests and confines redirections",
	"runtime/jupyter":     "inside the sandbox: execd calls the Jupyter Server of its flags and follows no redirection",
}

// httpPrograms are not part of the product.
var httpPrograms = []string{
	"bench/...",
	"gen/...",
	"clients/go/lifecycle",
	"clients/go/execd",
	"openapi/conform",
	"openapi/serve/servetest",
	"runtime/kernel/kerneltest",
	"runtime/engine/enginetest/...",
	"test/...",
}

// TestHTTPClients: requests to a sandbox, a pod or a sidecar are sent by a client that follows no
// redirection and reads a bounded number of bytes. So no other client of net/http is made anywhere.
func TestHTTPClients(t *testing.T) {
	atRoot(t)
	found := make(map[string]bool)
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || name == "bin" || entry.Name() == "testdata" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		directory := filepath.ToSlash(filepath.Dir(name))
		if matchesAny(httpPrograms, directory) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, use := range httpClientsIn(file) {
			found[directory] = true
			if httpExceptions[directory] == "" {
				t.Errorf("%s: %s: make it with %s.NewClient", name, use, httpConstructor)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for directory := range httpExceptions {
		if !found[directory] {
			t.Errorf(
				"%s is an exception and makes no client: remove it from httpExceptions",
				directory,
			)
		}
	}
}

// TestHTTPClientsAreFound proves that TestHTTPClients can fail.
func TestHTTPClientsAreFound(t *testing.T) {
	const head = "package p\nimport (\n\"net/http\"\nh \"net/http\"\n\"net/http/httputil\"\ngen \"sandbox.internal/clients/go/execd\"\n)\n"
	for source, want := range map[string]int{
		`var c = &http.Client{}`:                              1,
		`var c h.Client`:                                      1,
		`var c = new(http.Transport)`:                         1,
		`var t = &h.Transport{}`:                              1,
		`type s struct { http.Client }`:                       1,
		`type s struct { c http.Client }`:                     1,
		`type s struct { c *http.Client }`:                    0,
		`func f(c *http.Client) {}`:                           0,
		`var c = http.DefaultClient`:                          1,
		`var c = http.DefaultTransport`:                       1,
		`func f() { http.Get("") }`:                           1,
		`func f() { h.PostForm("", nil) }`:                    1,
		`func f() { http.Head(""); http.Post("", "", nil) }`:  2,
		`var p = httputil.ReverseProxy{}`:                     1,
		`var p = httputil.NewSingleHostReverseProxy(nil)`:     1,
		`var c, _ = gen.NewClient("")`:                        1,
		`var c, _ = gen.NewClientWithResponses("", x)`:        1,
		`var c, _ = gen.NewClient("", gen.WithHTTPClient(x))`: 0,
		`var e http.Handler`:                                  0,
	} {
		file, err := parser.ParseFile(
			token.NewFileSet(),
			"p.go",
			head+source,
			parser.SkipObjectResolution,
		)
		if err != nil {
			t.Fatal(err)
		}
		if got := httpClientsIn(file); len(got) != want {
			t.Errorf("%s: found %q, want %d", source, got, want)
		}
	}
}

// isGeneratedClient reports whether a package has a client that was generated from a contract.
func isGeneratedClient(importPath string) bool {
	return slices.Contains([]string{module + "/gen/egress", module + "/clients/go/lifecycle", module + "/clients/go/execd"}, importPath)
}

// httpClientsIn returns the places in a file that make or use a client which is not the
// constructor's: a value of the type Client or Transport, the default ones and what uses them, a
// reverse proxy, and generated clients that are not given one.
func httpClientsIn(file *ast.File) []string {
	imports := make(map[string]string) // by the name in this file
	for _, spec := range file.Imports {
		importPath := strings.Trim(spec.Path.Value, `"`)
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = importPath
	}
	pointed := make(map[ast.Expr]bool) // types behind a pointer
	var uses []string
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.StarExpr:
			pointed[n.X] = true
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, name := selected(called, imports)
			if isGeneratedClient(from) && strings.HasPrefix(name, "NewClient") && !slices.ContainsFunc(n.Args, isGivenClient) {
				uses = append(uses, fmt.Sprintf("%s without WithHTTPClient", name))
			}
		case *ast.SelectorExpr:
			from, name := selected(n, imports)
			switch {
			case from == "net/http" && slices.Contains([]string{"Client", "Transport"}, name) && !pointed[n],
				from == "net/http" && slices.Contains([]string{"DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm"}, name),
				from == "net/http/httputil" && strings.Contains(name, "ReverseProxy"):
				uses = append(uses, path.Base(from)+"."+name)
			}
		}
		return true
	})
	return uses
}

// selected returns the package and the name that a selector means, "" when it is not a package's.
func selected(s *ast.SelectorExpr, imports map[string]string) (from, name string) {
	if x, ok := s.X.(*ast.Ident); ok {
		return imports[x.Name], s.Sel.Name
	}
	return "", ""
}

func isGivenClient(argument ast.Expr) bool {
	call, ok := argument.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "WithHTTPClient"
}
