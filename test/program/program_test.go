package program_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSourcesAreInputs has a test of another module build a program: its result is repeated until a
// source of the program has changed.
func TestSourcesAreInputs(t *testing.T) {
	own, err := os.ReadFile("program.go")
	if err != nil {
		t.Fatal(err)
	}
	module := t.TempDir()
	written := time.Now().Add(-time.Hour) // the go command does not trust files of the last seconds
	write := func(name, content string) {
		t.Helper()
		file := filepath.Join(module, name)
		written = written.Add(time.Minute)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, changed := range []string{file, filepath.Dir(file)} {
			if err := os.Chtimes(changed, written, written); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("go.mod", "module example.test\n\ngo 1.26\n")
	write("program/program.go", string(own))
	write("library/library.go", "package library\n\nconst Word = \"first\"\n")
	write("command/main.go",
		"package main\n\nimport (\n\t_ \"embed\"\n\n\t\"example.test/library\"\n)\n\n//go:embed data/word\nvar word string\n\nfunc main() { println(library.Word, word) }\n")
	write("command/data/word", "first")
	write("check/check_test.go", `package check

import (
	"testing"

	"example.test/program"
)

func Test(t *testing.T) {
	if err := program.Build(t.Context(), t.TempDir(), "example.test/command"); err != nil {
		t.Fatal(err)
	}
}
`)
	test := func(what string, cached bool) {
		t.Helper()
		command := exec.CommandContext(t.Context(), "go", "test", "./check")
		command.Dir = module
		command.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		out, err := command.CombinedOutput()
		if err != nil || strings.Contains(string(out), "(cached)") != cached {
			t.Errorf("%s: cached is wanted to be %t: %v\n%s", what, cached, err, out)
		}
	}
	test("the first time", false)
	test("the same again", true)
	write("library/library.go", "package library\n\nconst Word = \"second\"\n")
	test("a package that the program imports has changed", false)
	write("command/data/word", "second")
	test("a file that the program embeds has changed", false)
	write("command/other.go", "package main\n\nfunc init() { println() }\n")
	test("a file has come", false)
	write("go.mod", "module example.test\n\ngo 1.26.0\n")
	test("go.mod has changed", false)
	test("the same again", true)
}

// TestNothingElseBuilds finds code that runs `go build` past this package.
func TestNothingElseBuilds(t *testing.T) {
	const root = "../.."
	builds := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		if strings.HasPrefix(path, filepath.Join(root, "bench")) {
			return nil // a measurement has no cached result
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, isCall := node.(*ast.CallExpr)
			for i := 1; isCall && i < len(call.Args); i++ {
				if isText(call.Args[i-1], "go") && isText(call.Args[i], "build") {
					t.Errorf(
						"%s builds a program whose sources are no inputs of the test: use program.Build", path)
				}
			}
			if selector, is := node.(*ast.SelectorExpr); is && selector.Sel.Name == "Build" {
				if name, is := selector.X.(*ast.Ident); is && name.Name == "program" {
					builds++
				}
			}
			return true
		})
		return nil
	})
	if err != nil || builds < 4 {
		t.Errorf("%d calls of program.Build are found (%v): the search finds nothing", builds, err)
	}
}

func isText(node ast.Expr, text string) bool {
	literal, is := node.(*ast.BasicLit)
	return is && literal.Kind == token.STRING && literal.Value == `"`+text+`"`
}
