package architecture_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestSleeps: no test sleeps to wait for something, which package test/wait is for. A sleep that is
// part of what is tested has a comment on its line that says why, or is in a file with the clock of
// testing/synctest.
func TestSleeps(t *testing.T) {
	atRoot(t)
	eachGoFile(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range sleepsIn(files, file) {
			t.Errorf("%s:%d: a sleep without a reason: wait with test/wait", name, line)
		}
	})
}

// TestSleepsAreFound proves that TestSleeps can fail.
func TestSleepsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		"import \"time\"\nfunc f() { time.Sleep(1) }":                              1,
		"import \"time\"\n// why\nfunc f() { time.Sleep(1) }":                      1,
		"import \"time\"\nfunc f() { time.Sleep(1) } // why":                       0,
		"import \"time\"\nimport \"testing/synctest\"\nfunc f() { time.Sleep(1) }": 0,
		"var text = \"time.Sleep(1)\"":                                             0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "p_test.go", "package p\n"+source,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := sleepsIn(files, file); len(got) != want {
			t.Errorf("%s: found %v, want %d", source, got, want)
		}
	}
}

// sleepsIn returns the lines of the sleeps without a reason.
func sleepsIn(files *token.FileSet, file *ast.File) (lines []int) {
	for _, imported := range file.Imports {
		if imported.Path.Value == `"testing/synctest"` {
			return nil
		}
	}
	reasons := make(map[int]bool)
	for _, comment := range file.Comments {
		reasons[files.Position(comment.Pos()).Line] = true
	}
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != "Sleep" {
			return true
		}
		if from, ok := selector.X.(*ast.Ident); ok && from.Name == "time" {
			if line := files.Position(selector.Pos()).Line; !reasons[line] {
				lines = append(lines, line)
			}
		}
		return true
	})
	return lines
}
