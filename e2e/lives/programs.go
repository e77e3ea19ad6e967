package lives

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// programs are those that the tests of one run share.
var programs workshop

// workshop builds each program once.
type workshop struct {
	mu     sync.Mutex
	folder string
	built  map[string]string
}

// Build returns the path of a program, given the import path of its package. It is a static binary, built once however often it is
// asked for. [RemoveBuilt] removes it.
func Build(t *testing.T, pkg string) string {
	t.Helper()
	return programs.build(t, pkg)
}

// RemoveBuilt removes what [Build] has built. It is for the end of TestMain.
func RemoveBuilt() { programs.remove() }

func (w *workshop) build(t *testing.T, pkg string) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if program, ok := w.built[pkg]; ok {
		return program
	}
	if w.folder == "" {
		folder, err := os.MkdirTemp("", "sandbox-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		w.folder, w.built = folder, map[string]string{}
	}
	program := filepath.Join(w.folder, path.Base(pkg))
	command := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	w.built[pkg] = program
	return program
}

func (w *workshop) remove() {
	if w.folder != "" {
		_ = os.RemoveAll(w.folder) // a folder in the system's place for temporary files
	}
}
