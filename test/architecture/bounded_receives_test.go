package architecture_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestReceivesOfTestsAreBounded: a test that waits for a channel ends although nothing comes, so
// that a defect fails one test and not its package. The rule is for functions that have the test,
// for cleanups and for deferred functions. Goroutines and handlers end with what the test ends, and
// the channel C of a timer is a bound itself. Files with the clock of testing/synctest need no
// bound: that reports a deadlock.
func TestReceivesOfTestsAreBounded(t *testing.T) {
	atRoot(t)
	eachGoFile(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range endlessReceivesIn(files, file) {
			t.Errorf("%s:%d: a receive that may wait for ever: use wait.For", name, line)
		}
	})
}

// TestEndlessReceivesAreFound proves that TestReceivesOfTestsAreBounded can fail.
func TestEndlessReceivesAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`func f(t *testing.T) { <-c }`:                                   1,
		`func f(t testing.TB) { x := <-c; y, ok := <-c }`:                2,
		`func f(t *testing.T) { g(<-c, func() { <-c }) }`:                1,
		`func f(t *testing.T) { select { case <-c: case x := <-c: } }`:   0,
		`func f(t *testing.T) { select { case <-c: <-d } }`:              1,
		`func f(t *testing.T) { <-timer.C }`:                             0,
		`func f(t *testing.T) { go func() { <-c }() }`:                   0,
		`func f(t *testing.T) { t.Cleanup(func() { <-c }) }`:             1,
		`func f(t *testing.T) { defer func() { <-c }() }`:                1,
		`func f(t *testing.T) { t.Run("", func(t *testing.T) { <-c }) }`: 1,
		`func f() { <-c }`: 0,
		"import \"testing/synctest\"\nfunc f(t *testing.T) { <-c }":       0,
		`func f(t *testing.T) { c <- 1; wait.For(t, "the end", c) }`:      0,
		`func f(t *testing.T) { for x := range c { g(x) } }`:              0,
		`func (x *y) f(t *testing.B) { if v := <-x.c; v { return } }`:     1,
		`func f(t *testing.T) { h(func(w http.ResponseWriter) { <-c }) }`: 0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "p_test.go", "package p\nimport \"testing\"\n"+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := endlessReceivesIn(files, file); len(got) != want {
			t.Errorf("%s: found %v, want %d", source, got, want)
		}
	}
}

// endlessReceivesIn returns the lines on which a test receives outside of a select.
func endlessReceivesIn(files *token.FileSet, file *ast.File) (lines []int) {
	for _, spec := range file.Imports {
		if spec.Path.Value == `"testing/synctest"` {
			return nil
		}
	}
	ast.PreorderStack(file, nil, func(node ast.Node, above []ast.Node) bool {
		receive, ok := node.(*ast.UnaryExpr)
		if !ok || receive.Op != token.ARROW || isTimer(receive.X) || isCase(receive, above) {
			return true
		}
		if ofTest(above) {
			lines = append(lines, files.Position(receive.Pos()).Line)
		}
		return true
	})
	return lines
}

func isTimer(channel ast.Expr) bool {
	of, ok := channel.(*ast.SelectorExpr)
	return ok && of.Sel.Name == "C"
}

// isCase reports whether the receive is a case of a select.
func isCase(receive ast.Node, above []ast.Node) bool {
	return slices.ContainsFunc(above, func(node ast.Node) bool {
		clause, ok := node.(*ast.CommClause)
		return ok && clause.Comm != nil && clause.Comm.Pos() <= receive.Pos() && receive.End() <= clause.Comm.End()
	})
}

// ofTest reports whether the innermost function around a node, which has the nodes above, has a
// test as its parameter, or is a cleanup or deferred.
func ofTest(above []ast.Node) bool {
	for i, node := range slices.Backward(above) {
		switch function := node.(type) {
		case *ast.FuncDecl:
			return slices.ContainsFunc(function.Type.Params.List, isTest)
		case *ast.FuncLit:
			if slices.ContainsFunc(function.Type.Params.List, isTest) {
				return true
			}
			call, ok := above[i-1].(*ast.CallExpr)
			if !ok {
				return false
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				return s.Sel.Name == "Cleanup"
			}
			_, deferred := above[i-2].(*ast.DeferStmt)
			return deferred && call.Fun == function
		}
	}
	return false
}

// isTest reports whether a parameter is a test of the package testing.
func isTest(parameter *ast.Field) bool {
	of := parameter.Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	s, ok := of.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == "testing" && slices.Contains([]string{"T", "B", "F", "TB"}, s.Sel.Name)
}
