package cells_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/program"
)

// TestCellsOnTheLocalEngine: the kernels of every language work in a sandbox of the service's own engine.
func TestCellsOnTheLocalEngine(t *testing.T) {
	t.Parallel()
	d := enter(t, onLocal(t), nil, "sleep", "infinity")
	for _, l := range []language{python(), bash(), java(), javascript(), typescript(), golang()} {
		t.Run(l.name, func(t *testing.T) {
			id := d.newContext(t, l.name)
			d.run(t, id, l.set).good(t)
			variablesPersist(t, d, l, id)
		})
	}
}

// onLocal chooses the service's own engine in a configuration, with the archives of scripts/images.sh --archives execd code-interpreter.
func onLocal(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("SANDBOX_CACHE")
	if cache == "" {
		folder, err := os.UserCacheDir()
		must(t, err)
		cache = filepath.Join(folder, "sandbox")
	}
	var archives []string
	for _, name := range []string{"execd", "code-interpreter"} {
		archives = append(archives, filepath.Join(cache, "archives", name+".tar"))
	}
	programs := t.TempDir()
	must(t, program.Build(t.Context(), programs, "sandbox.internal/server/cmd/sandbox-keeper"))
	return fmt.Sprintf("type = \"local\"\n[local]\ndata_dir = %q\nkeeper = %q\nbridge = \"cells%d\"\narchives = [%q, %q]\n",
		filepath.Join(t.TempDir(), "engine"), filepath.Join(programs, "sandbox-keeper"), os.Getpid()%1000000, archives[0], archives[1])
}
