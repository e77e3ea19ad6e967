package cells_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/program"
)

var (
	directOn = flag.String("engine", "local", "what runs the sandbox whose kernels execd starts: local or docker")
	runtime  = flag.String("runtime", "crun", "the OCI runtime of the local engine: crun, runc or runsc")
)

// chosenEngine returns the lines of a configuration for the flags.
func chosenEngine(t *testing.T) string {
	t.Helper()
	switch *directOn {
	case "local":
		return onLocal(t)
	case "docker":
		return onDocker
	}
	t.Fatalf("-engine: %q is neither local nor docker", *directOn)
	return ""
}

// onLocal chooses the service's own engine in a configuration, with the archives of
// scripts/images.sh --archives execd code-interpreter.
func onLocal(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("SANDBOX_CACHE")
	if cache == "" {
		directory, err := os.UserCacheDir()
		must(t, err)
		cache = filepath.Join(directory, "sandbox")
	}
	var archives []string
	for _, name := range []string{"execd", "code-interpreter"} {
		archives = append(archives, filepath.Join(cache, "archives", name+".tar"))
	}
	programs := t.TempDir()
	must(t, program.Build(t.Context(), programs, "sandbox.internal/server/cmd/sandbox-keeper"))
	return fmt.Sprintf("type = \"local\"\n[local]\noci_runtime = %q\ndata_dir = %q\nkeeper = %q\nbridge = \"cells%d\"\narchives = [%q, %q]\n",
		*runtime, filepath.Join(t.TempDir(), "engine"), filepath.Join(programs, "sandbox-keeper"), os.Getpid()%1000000, archives[0], archives[1])
}
