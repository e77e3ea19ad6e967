package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs builds the programs that tests run; the tests of this package share them.
var programs workshop

// workshop builds each program once.
type workshop struct {
	mu     sync.Mutex
	folder string
	built  map[string]string
}

// build returns the path of the program whose package is named relative to this folder. It is a static binary.
func (w *workshop) build(t *testing.T, pkg string) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if path, ok := w.built[pkg]; ok {
		return path
	}
	if w.folder == "" {
		folder, err := os.MkdirTemp("", "sandbox-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		w.folder, w.built = folder, map[string]string{}
	}
	path := filepath.Join(w.folder, filepath.Base(pkg))
	command := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	w.built[pkg] = path
	return path
}

func (w *workshop) remove() {
	if w.folder != "" {
		_ = os.RemoveAll(w.folder) // a folder in the system's place for temporary files
	}
}
