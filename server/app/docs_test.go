package app_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPagesNameEveryReasonAndMetric compares the tables of two pages with the code. TestErrorCodes
// of test/e2e/coverage has the codes of errors.
func TestPagesNameEveryReasonAndMetric(t *testing.T) {
	for page, names := range map[string][]string{"runbook.md": reasons(t), "monitoring.md": metricNames(t)} {
		content, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if !strings.Contains(string(content), "`"+name+"`") {
				t.Errorf("docs/%s does not name %s", page, name)
			}
		}
		if len(names) < 18 {
			t.Errorf("only %d names were found for docs/%s: %q", len(names), page, names)
		}
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
	return append(found, "sandbox_sandboxes", "sandbox_snapshots", "sandbox_network_problem", "sandbox_spare_networks", "sandbox_spare_network_requests_total",
		"sandbox_webhook_oldest_undelivered_seconds")
}
