package app_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestOperationsNamesEveryReasonMetricAndCode holds the tables of the manual against the code.
func TestOperationsNamesEveryReasonMetricAndCode(t *testing.T) {
	manual, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Concat(reasons(t), metricNames(t), codes(t))
	for _, name := range names {
		if !strings.Contains(string(manual), "`"+name+"`") {
			t.Errorf("docs/operations.md does not tell of %s", name)
		}
	}
	if len(names) < 35 {
		t.Errorf("only %d names were found: %q", len(names), names)
	}
}

// reasons returns the values of the constants of type lifecycle.Reason.
func reasons(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../lifecycle/state.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, value)
		}
		return true
	})
	return found
}

// codes returns the codes of errors that the service names in its code, and those that follow from statuses.
func codes(t *testing.T) []string {
	t.Helper()
	found := []string{"UNAUTHORIZED", "METHOD_NOT_ALLOWED", "NOT_FOUND"}
	for _, pattern := range []string{"../api/*.go", "../../openapi/serve/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(`"([A-Z]+(?:_[A-Z]+)+)"`).FindAllStringSubmatch(string(source), -1) {
				found = append(found, match[1])
			}
		}
	}
	// The service has no operation with ranges.
	return slices.DeleteFunc(found, func(code string) bool { return code == "RANGE_NOT_SATISFIABLE" })
}

func metricNames(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("../metrics/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, match := range regexp.MustCompile(`m\.(?:counter|gauge|histogram)\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		found = append(found, "sandbox_"+match[1])
	}
	return append(found, "sandbox_sandboxes")
}
