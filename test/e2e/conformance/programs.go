package conformance

import (
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"sandbox.internal/test/program"
)

// programs are those that the tests of one run share.
var programs programCache

// programCache builds each program once.
type programCache struct {
	mu        sync.Mutex
	directory string
	built     map[string]string
}

// Build returns the path of a program, given the import path of its package. It is a static binary,
// built once however often it is asked for. [RemoveBuilt] removes it.
func Build(t *testing.T, pkg string) string {
	t.Helper()
	return programs.build(t, pkg)
}

// RemoveBuilt removes what [Build] has built. It is for the end of TestMain.
func RemoveBuilt() { programs.remove() }

func (w *programCache) build(t *testing.T, pkg string) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if file, ok := w.built[pkg]; ok {
		return file
	}
	if w.directory == "" {
		directory, err := os.MkdirTemp("", "sandbox-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		w.directory, w.built = directory, map[string]string{}
	}
	if err := program.Build(t.Context(), w.directory, pkg); err != nil {
		t.Fatal(err)
	}
	w.built[pkg] = filepath.Join(w.directory, path.Base(pkg))
	return w.built[pkg]
}

func (w *programCache) remove() {
	if w.directory != "" {
		_ = os.RemoveAll(w.directory) // a directory in the system's place for temporary files
	}
}
