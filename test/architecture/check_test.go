package architecture_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackagesHaveAClass: scripts/packages.sh gives every package that has tests one class, and no
// other package; what it names still exists.
func TestPackagesHaveAClass(t *testing.T) {
	atRoot(t)
	watchSources(t)
	graph := list(t)
	out, err := exec.CommandContext(t.Context(), "scripts/packages.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	script := read(t, "scripts/packages.sh")
	classes := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		class, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if other, twice := classes[name]; twice {
			t.Errorf("%s is %s and %s", name, other, class)
		}
		if !strings.Contains(script, "\n#   "+class+" ") {
			t.Errorf("%s is %s, which scripts/packages.sh does not describe", name, class)
		}
		classes[name] = class
	}
	used := make(map[string]bool)
	for name, p := range graph {
		imports := slices.Concat(p.TestImports, p.XTestImports)
		if _, found := classes[name]; strings.HasPrefix(name, module+"/") && found != (len(imports) > 0) {
			t.Errorf("%s: its tests import %d packages, and it has the class %q", name, len(imports), classes[name])
		}
		for _, imported := range imports {
			used[imported] = true
		}
	}
	for _, lists := range regexp.MustCompile(`(?m)^[a-z]+="([^"]+)"$`).FindAllStringSubmatch(script, -1) {
		for named := range strings.FieldsSeq(lists[1]) {
			own, isOwn := strings.CutSuffix(named, "=")
			name := path.Join(module, own)
			if isOwn && classes[name] == "" || !isOwn && !used[name] {
				t.Errorf("scripts/packages.sh names %s, which has no tests or which no tests import", named)
			}
		}
	}
	for name, class := range map[string]string{
		"server/host": "unit", "execd/files": "unit", "test/architecture": "unit", "runtime/oci": "local",
		"runtime/docker": "docker", "test/e2e/browser": "browser", "test/e2e/kube": "cluster",
	} {
		if got := classes[path.Join(module, name)]; got != class {
			t.Errorf("%s is %q, not %s", name, got, class)
		}
	}
}

// TestLeftOutTestsExist: what make test leaves out by name is still there.
func TestLeftOutTestsExist(t *testing.T) {
	atRoot(t)
	watchSources(t)
	out, err := exec.CommandContext(t.Context(), "scripts/packages.sh", "--skip").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`Test\w+`).FindAllString(string(out), -1)
	if len(names) == 0 {
		t.Errorf("%s names no test", out)
	}
	for _, name := range names {
		if err := exec.CommandContext(t.Context(), "grep", "-rq", "--include=*_test.go", "^func "+name+"(", ".").Run(); err != nil {
			t.Errorf("there is no test %s: %v", name, err)
		}
	}
}
