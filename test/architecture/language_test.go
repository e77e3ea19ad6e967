package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// messageSubject is a beginning of a message that names neither an action nor a thing.
	messageSubject = regexp.MustCompile(
		`^(?i:what|whatever|whether|its|it|that|those|they|one|nothing|nobody|who|whoever)\b`)
	// messagePhrase hides who does what, or whether something failed.
	messagePhrase = regexp.MustCompile(`\b(is|are|be) no error\b|\bis tried again\b|\bgoes on\b`)
	// docSubject is a beginning of a sentence, or of the whole comment of a field.
	docSubject = regexp.MustCompile(
		`^(?i:what|whatever|whether|its|that|one|nothing|nobody|who|whoever)\b|` +
			`[.?!]\s+(?:What|Whatever|Whether|Its|That|One|Nothing|Nobody|Who|Whoever)\b`)
	docPhrase = regexp.MustCompile(`\b(is|are|be)\s+no\s+error\b`)
)

// TestLanguage: log messages and errors begin with a verb or a noun of the field, documentation
// comments of exported identifiers have subjects that name something, and an operation "succeeds".
func TestLanguage(t *testing.T) {
	atRoot(t)
	eachGoFile(t, func(name string) {
		for _, fault := range languageFaults(t, name, nil) {
			t.Error(fault)
		}
	})
}

// TestLanguageFaultsAreFound proves that TestLanguage can fail.
func TestLanguageFaultsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`var e = errors.New("what was made stays")`:                              1,
		`var e = fmt.Errorf("it ended with %d", 1)`:                              1,
		`var e = fmt.Errorf("cannot read "+"it: %w", e)`:                         0,
		`func f() { log.Info().Msg("nothing is left") }`:                         1,
		`var e = rules.Invalidf(kind, "it must be %d", 1)`:                       1,
		`func f() { log.Info().Msgf("shim of %s goes on", x) }`:                  1,
		`func f() { log.Info().Msg("cannot stop the shim; retrying") }`:          0,
		"// F does it. A file that is gone is no\n// error.\nfunc F() {}":        1,
		"// F does it. What is left is removed.\nfunc F() {}":                    1,
		"// f does it. What is left is removed.\nfunc f() {}":                    0,
		"// f does it; a file that is gone is no error.\nfunc f() {}":            1,
		"// T is it.\ntype T struct { A int // its name\n}":                      1,
		"// T is it.\ntype T struct { a int // its name\n}":                      0,
		"// t is it.\ntype t struct { A int // its name\n}":                      0,
		"// Values.\nconst (\n// Whether it runs.\nA = 1\n)":                     1,
		"// What there is.\nvar A, b int":                                        1,
		"// T is it.\ntype T interface {\n// M does. Its errors say so.\nM()\n}": 1,
	} {
		text := "// Package p is it.\npackage p\n" + source + "\n"
		if got := languageFaults(t, "p.go", []byte(text)); len(got) != want {
			t.Errorf("%s: %q, want %d", source, got, want)
		}
	}
}

// languageFaults returns the faults of a file, or of the source if it is given.
func languageFaults(t *testing.T, name string, source []byte) (faults []string) {
	t.Helper()
	files := token.NewFileSet()
	var from any
	if source != nil {
		from = source
	}
	file, err := parser.ParseFile(files, name, from, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(file) {
		return nil
	}
	test := strings.HasSuffix(name, "_test.go")
	report := func(at ast.Node, rule, text string) {
		faults = append(faults, fmt.Sprintf("%s: %s: %.100q", files.Position(at.Pos()), rule, text))
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if text := message(node, test); messageSubject.MatchString(text) || messagePhrase.MatchString(text) {
			report(node, "begin with a verb or a noun, name the actor", text)
		}
		return true
	})
	for _, comment := range file.Comments {
		if text := comment.Text(); docPhrase.MatchString(text) {
			report(comment, `say what "succeeds"`, text)
		}
	}
	if !test {
		for _, comment := range exportedComments(file) {
			if text := comment.Text(); docSubject.MatchString(text) {
				report(comment, "give each sentence a subject that names something", text)
			}
		}
	}
	return faults
}

// message returns the constant text of a log message or of an error, and outside of tests of what a
// function formats whose name ends in f; "" for any other node.
func message(node ast.Node, test bool) string {
	call, ok := node.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	from, _ := called.X.(*ast.Ident)
	switch {
	case called.Sel.Name == "Msg", called.Sel.Name == "Msgf",
		from != nil && from.Name == "errors" && called.Sel.Name == "New",
		from != nil && from.Name == "fmt" && called.Sel.Name == "Errorf":
		return literals(call.Args[0])
	case !test && strings.HasSuffix(called.Sel.Name, "f"):
		for _, argument := range call.Args {
			if text := literals(argument); text != "" {
				return text
			}
		}
	}
	return ""
}

// literals returns the text of a string literal, or of the literals of a sum.
func literals(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literals(e.X) + literals(e.Y)
	}
	return ""
}

// exportedComments returns the comments of the package, of exported identifiers, and of the
// exported fields and methods of exported types.
func exportedComments(file *ast.File) []*ast.CommentGroup {
	comments := []*ast.CommentGroup{file.Doc}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				comments = append(comments, d.Doc)
			}
		case *ast.GenDecl:
			before := len(comments)
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						comments = append(comments, s.Doc, s.Comment)
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						comments = append(append(comments, s.Doc, s.Comment), fieldComments(s.Type)...)
					}
				}
			}
			if len(comments) > before {
				comments = append(comments, d.Doc)
			}
		}
	}
	return slices.DeleteFunc(comments, func(c *ast.CommentGroup) bool { return c == nil })
}

func fieldComments(of ast.Expr) (comments []*ast.CommentGroup) {
	ast.Inspect(of, func(node ast.Node) bool {
		field, ok := node.(*ast.Field)
		if ok && (len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported)) {
			comments = append(comments, field.Doc, field.Comment)
		}
		return true
	})
	return comments
}
