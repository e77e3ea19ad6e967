package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// between stands between the outputs of commands that are replayed.
const between = "\x1e"

// cell is text of a table of the page that may be as wide as its column needs: an age of 13s as
// well as of 2s.
var cell = regexp.MustCompile("… +")

// TestQuickstart replays the console blocks of docs/quickstart.md in one shell, and compares what
// each command prints with what the page shows. An ellipsis of the page stands for any text.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	program := conformance.Build(t, "sandbox.internal/clients/cmd/sandbox")
	directory := t.TempDir()
	conformance.Write(t, directory, "api.key", conformance.AdminKey+"\n")
	if err := os.Symlink(filepath.Dir(program), filepath.Join(directory, "bin")); err != nil {
		t.Fatal(err)
	}
	elsewhere := strings.NewReplacer(pageServer, s.URL, "~/.local/state/sandbox-run/", "")
	var commands, outputs []string
	for _, rest := range strings.Split(conformance.ReadPage(t, "docs/quickstart.md"), "\n```console\n")[1:] {
		block, _, _ := strings.Cut(rest, "\n```")
		for line := range strings.Lines(block + "\n") {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands, outputs = append(commands, elsewhere.Replace(command)), append(outputs, "")
			} else {
				outputs[len(outputs)-1] += elsewhere.Replace(line)
			}
		}
	}
	if len(commands) < 10 {
		t.Fatalf("the page has only %d commands", len(commands))
	}
	var script strings.Builder
	for _, command := range commands {
		fmt.Fprintf(&script, "%sprintf '\\x1e'\n", command)
	}
	shell := exec.CommandContext(t.Context(), "bash", "-c", script.String())
	shell.Dir = directory
	printed, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, printed)
	}
	got := strings.Split(strings.TrimSuffix(string(printed), between), between)
	if len(got) != len(commands) {
		t.Fatalf("%d commands printed %d outputs:\n%s", len(commands), len(got), printed)
	}
	for i, command := range commands {
		pattern := strings.ReplaceAll(cell.ReplaceAllString(regexp.QuoteMeta(outputs[i]), "… +"), "…", ".*")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(got[i]) {
			t.Errorf("$ %sprinted\n%s\nthe page shows\n%s", command, got[i], outputs[i])
		}
	}
}
