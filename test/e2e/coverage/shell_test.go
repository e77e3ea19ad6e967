package coverage_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	used    = regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`)
	defined = regexp.MustCompile(`(?m)(?:^|[;&(\s])([A-Za-z_][A-Za-z0-9_]*)=|\bfor ([A-Za-z_][A-Za-z0-9_]*) in\b|\bread (?:-\w+ )*((?:[A-Za-z_][A-Za-z0-9_]* ?)+)`)
)

// given are the variables that a reader has.
var given = []string{"HOME", "SERVICE_API_KEY"}

// TestShellBlocks finds shell blocks of the documentation that no shell can read, and variables
// that nothing on their page defines before, but for the pages about Kubernetes. TestPages of e2e
// runs those of the pages that speak to a service.
func TestShellBlocks(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	blocks := 0
	pages = slices.DeleteFunc(pages, func(page string) bool { return strings.HasPrefix(filepath.Base(page), "kubernetes") })
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		known := slices.Clone(given)
		for _, block := range shellBlocks(string(content)) {
			blocks++
			check := exec.CommandContext(t.Context(), "bash", "-n")
			check.Stdin = strings.NewReader(block)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", page, err, out, block)
			}
			for _, names := range defined.FindAllStringSubmatch(block, -1) {
				known = append(known, strings.Fields(strings.Join(names[1:], " "))...)
			}
			for _, name := range used.FindAllStringSubmatch(block, -1) {
				if !slices.Contains(known, name[1]) {
					t.Errorf("%s: nothing defines $%s before\n%s", page, name[1], block)
				}
			}
		}
	}
	if blocks < 20 {
		t.Errorf("%d shell blocks are found", blocks)
	}
}

// shellBlocks returns the blocks of a page that are marked as sh.
func shellBlocks(page string) (blocks []string) {
	for _, rest := range strings.Split(page, "\n```sh\n")[1:] {
		block, _, _ := strings.Cut(rest, "\n```")
		blocks = append(blocks, block+"\n")
	}
	return blocks
}
