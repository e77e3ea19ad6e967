package coverage_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// service is where the errors of a service come from.
type service struct {
	name      string // of its contract, too
	directory string
	without   []string // directories of programs with errors of their own
}

func services() []service {
	return []service{
		{"lifecycle", "server", []string{"server/ingress", "server/cmd"}},
		{"execd", "execd", []string{"egress", "taskexecutor", "execd/cmd"}},
	}
}

// TestErrorCodes compares the table of docs/errors.md with the errors of both services: pairs of a
// status and a code in their source, and for each status of their contracts the code that package
// serve gives it.
func TestErrorCodes(t *testing.T) {
	documented := map[string]bool{}
	page, err := os.ReadFile(filepath.Join(root, "docs", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (\\d{3}) \\| (both|lifecycle|execd) \\| [^|]+ \\| [^|]+ \\|$")
	for _, cells := range row.FindAllStringSubmatch(string(page), -1) {
		for _, s := range services() {
			if cells[3] == "both" || cells[3] == s.name {
				documented[strings.Join([]string{s.name, cells[2], cells[1]}, " ")] = true
			}
		}
	}
	if rows := strings.Count(string(page), "\n| `"); rows != len(row.FindAllString(string(page), -1)) {
		t.Errorf("docs/errors.md has %d rows, of which not all can be read", rows)
	}
	shared := readErrors(t, "openapi", nil)
	for _, code := range shared.logged {
		if !strings.Contains(string(page), "`"+code+"`") {
			t.Errorf("docs/errors.md does not name %s, which is in logs", code)
		}
	}
	sent := map[string]bool{}
	for _, s := range services() {
		for _, problem := range s.errors(t, shared) {
			sent[fmt.Sprintf("%s %d %s", s.name, problem.status, problem.code)] = true
		}
	}
	if len(sent) < 25 {
		t.Errorf("only %d errors were found", len(sent))
	}
	for _, problem := range slices.Sorted(maps.Keys(sent)) {
		if !documented[problem] {
			t.Errorf("docs/errors.md has no row for %s", problem)
		}
	}
	for _, problem := range slices.Sorted(maps.Keys(documented)) {
		if !sent[problem] {
			t.Errorf("docs/errors.md has a row for %s, which is never sent", problem)
		}
	}
}

type problem struct {
	status int
	code   string
}

// errors returns what the service sends: the errors of its own source, and those of the shared one
// with a status that it can have.
func (s service) errors(t *testing.T, shared source) []problem {
	t.Helper()
	own := readErrors(t, s.directory, s.without)
	internal := own.internal
	if internal == "" {
		internal = shared.internal
	}
	usual := map[int]string{}
	for _, p := range shared.problems {
		usual[p.status] = p.code
	}
	usual[http.StatusInternalServerError] = internal
	sent := own.problems
	for status := range s.statuses(t) {
		code, ok := usual[status]
		if !ok {
			code = strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_", "'", "").Replace(http.StatusText(status)))
		}
		sent = append(sent, problem{status, code})
	}
	return sent
}

// statuses returns the statuses of errors in the service's contract, and those of requests to no
// operation.
func (s service) statuses(t *testing.T) map[int]bool {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromFile(filepath.Join(root, "openapi", s.name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{http.StatusNotFound: true, http.StatusMethodNotAllowed: true}
	for _, item := range document.Paths.Map() {
		for _, operation := range item.Operations() {
			for text := range operation.Responses.Map() {
				if status, err := strconv.Atoi(text); err == nil && status >= http.StatusBadRequest {
					found[status] = true
				}
			}
		}
	}
	return found
}

// source is what Go files say about errors.
type source struct {
	problems []problem
	internal string   // the code of a 500
	logged   []string // codes of statuses that are never sent
}

var upperSnake = regexp.MustCompile(`^[A-Z]+(_[A-Z]+)+$|^[A-Z]{5,}$`)

// readErrors finds the pairs of a status and a code in the Go files below a directory: next to each
// other in a call or a literal, as the fields Status and Code, and as a case and what it returns.
func readErrors(t *testing.T, directory string, without []string) source {
	t.Helper()
	files := parseDirectory(t, directory, without)
	r := errorReader{t: t, constants: constantsOf(files)}
	for _, file := range files {
		r.file = file
		ast.Inspect(file, r.visit)
	}
	return r.found
}

func parseDirectory(t *testing.T, directory string, without []string) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(without, strings.TrimPrefix(filepath.ToSlash(path), root+"/")):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		files = append(files, file)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", directory, len(files), err)
	}
	return files
}

// constantsOf returns the constants whose value looks like a code.
func constantsOf(files []*ast.File) map[string]string {
	constants := map[string]string{}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, name := range spec.Names {
					if code := literal(spec.Values[i]); code != "" {
						constants[name.Name] = code
					}
				}
			}
			return true
		})
	}
	return constants
}

type errorReader struct {
	t         *testing.T
	constants map[string]string
	file      *ast.File
	found     source
}

func (r *errorReader) visit(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.CallExpr:
		r.neighbours(n.Args)
	case *ast.CompositeLit:
		r.neighbours(n.Elts)
		r.fields(n.Elts)
	case *ast.CaseClause:
		if len(n.List) == 1 && len(n.Body) == 1 {
			if answer, ok := n.Body[0].(*ast.ReturnStmt); ok && len(answer.Results) == 1 {
				r.neighbours([]ast.Expr{n.List[0], answer.Results[0]})
				if code := r.code(answer.Results[0]); code != "" && statusOf(n.List[0]) == 0 {
					r.found.logged = append(r.found.logged, code)
				}
			}
		}
	case *ast.AssignStmt:
		if field, ok := n.Lhs[0].(*ast.SelectorExpr); ok && field.Sel.Name == "InternalCode" {
			r.found.internal = r.code(n.Rhs[0])
		}
	case *ast.KeyValueExpr:
		if name, ok := n.Key.(*ast.Ident); ok && name.Name == "InternalCode" {
			r.found.internal = r.code(n.Value)
		}
	}
	return true
}

func (r *errorReader) neighbours(list []ast.Expr) {
	for i := 1; i < len(list); i++ {
		if status, code := statusOf(list[i-1]), r.code(list[i]); status != 0 && code != "" {
			r.found.problems = append(r.found.problems, problem{status, code})
		}
	}
}

func (r *errorReader) fields(list []ast.Expr) {
	values := map[string]ast.Expr{}
	for _, element := range list {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok {
				values[name.Name] = pair.Value
			}
		}
	}
	status := statusOf(values["Status"])
	if status == 0 || values["Code"] == nil {
		return
	}
	codes := []string{r.code(values["Code"])}
	if codes[0] == "" {
		if codes = r.comparedWith(values["Code"]); len(codes) == 0 {
			r.t.Errorf("an error with the status %d has a code that cannot be read in package %s", status, r.file.Name)
		}
	}
	for _, code := range codes {
		r.found.problems = append(r.found.problems, problem{status, code})
	}
}

// comparedWith returns the codes that the file compares a field with, such as that of another
// service's error which is passed on.
func (r *errorReader) comparedWith(field ast.Expr) (codes []string) {
	selector, ok := field.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	ast.Inspect(r.file, func(node ast.Node) bool {
		if equal, ok := node.(*ast.BinaryExpr); ok && equal.Op == token.EQL {
			if left, ok := equal.X.(*ast.SelectorExpr); ok && left.Sel.Name == selector.Sel.Name {
				if code := r.code(equal.Y); code != "" {
					codes = append(codes, code)
				}
			}
		}
		return true
	})
	return codes
}

func (r *errorReader) code(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.Ident:
		return r.constants[e.Name]
	case *ast.SelectorExpr:
		return r.constants[e.Sel.Name]
	}
	return literal(expression)
}

func literal(expression ast.Expr) string {
	if l, ok := expression.(*ast.BasicLit); ok && l.Kind == token.STRING {
		if value, err := strconv.Unquote(l.Value); err == nil && upperSnake.MatchString(value) {
			return value
		}
	}
	return ""
}

// statusOf returns the value of http.StatusSomething when it is that of an error, else 0.
func statusOf(expression ast.Expr) int {
	selector, ok := expression.(*ast.SelectorExpr)
	if !ok {
		return 0
	}
	for status := http.StatusBadRequest; status < 600; status++ {
		if name := strings.NewReplacer(" ", "", "-", "", "'", "").Replace(http.StatusText(status)); name != "" && selector.Sel.Name == "Status"+name {
			return status
		}
	}
	return 0
}
