package architecture_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCheckPackages: what scripts/check.sh names still exists and still leaves a package out, and
// what it runs includes the packages that are tested most often.
func TestCheckPackages(t *testing.T) {
	atRoot(t)
	watchSources(t)
	graph := list(t)
	script := read(t, "scripts/check.sh")
	named := func(variable string) []string {
		match := regexp.MustCompile(`(?m)^` + variable + `="([^"]+)"$`).FindStringSubmatch(script)
		if match == nil {
			t.Fatalf("scripts/check.sh has no variable %s", variable)
		}
		return strings.Split(match[1], "|")
	}
	out, err := exec.CommandContext(t.Context(), "scripts/check.sh", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	run := strings.Fields(string(out))
	for _, part := range named("parts") {
		users := 0
		for name, p := range graph {
			if slices.Contains(slices.Concat(p.TestImports, p.XTestImports), path.Join(module, part)) {
				users++
				if slices.Contains(run, name) {
					t.Errorf("make check runs %s, whose tests import %s", name, part)
				}
			}
		}
		if users == 0 {
			t.Errorf("scripts/check.sh names %s, which no tests import", part)
		}
	}
	for _, other := range named("others") {
		name := path.Join(module, other)
		if p, ok := graph[name]; !ok || len(p.TestImports)+len(p.XTestImports) == 0 {
			t.Errorf("scripts/check.sh names %s, which has no tests", other)
		}
		if slices.Contains(run, name) {
			t.Errorf("make check runs %s, which scripts/check.sh leaves out", other)
		}
	}
	for _, wanted := range []string{"server/host", "execd/files", "test/architecture"} {
		if !slices.Contains(run, path.Join(module, wanted)) {
			t.Errorf("make check does not run %s", wanted)
		}
	}
}
