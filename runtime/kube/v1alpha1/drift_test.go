package v1alpha1_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedCodeIsCurrent: the deep copies and the definitions are what controller-gen makes of
// the types.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	fresh := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "controller-gen", "object", "crd:maxDescLen=300", "paths=.",
		"output:object:dir="+fresh, "output:crd:dir="+fresh)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	committed, err := filepath.Glob("../config/crd/*.yaml")
	if err != nil || len(committed) == 0 {
		t.Fatalf("no definitions are committed (%v)", err)
	}
	committed = append(committed, "zz_generated.deepcopy.go")
	for _, name := range committed {
		want, err := os.ReadFile(filepath.Join(fresh, filepath.Base(name)))
		if err != nil {
			t.Errorf("%s is generated no more: %v", name, err)
			continue
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the types generate: run `go generate .` and commit the result", name)
		}
	}
	if made, err := os.ReadDir(fresh); err != nil || len(made) != len(committed) {
		t.Errorf("%d files are generated and %d committed (%v)", len(made), len(committed), err)
	}
}
