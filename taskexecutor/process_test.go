package taskexecutor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// TestMainWithATitle: the main container's first process counts, though only its child has the
// marker left.
func TestMainWithATitle(t *testing.T) {
	l := startLocal(t, t.TempDir(), TitledMain)
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", l.main))
	if err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(t.TempDir(), "said")
	l.put("task", "echo $PWD $FROM > "+said)
	l.is("task", tasks.Succeeded)
	got, err := os.ReadFile(said)
	if want += " main\n"; err != nil || string(got) != want {
		t.Errorf("the task says %q, %v; want %q", got, err, want)
	}
}

// TestHugeEnvironment: not everything is read that a process calls its environment.
func TestHugeEnvironment(t *testing.T) {
	const marker = "SANDBOX_MAIN=huge"
	pid := startMain(t, "OTHER=1", HugeMain, marker)
	if _, _, err := findMain(marker); !errors.Is(err, errNoMain) {
		t.Errorf("find it: %v", err)
	}
	id, err := process.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(id, id); !errors.Is(err, unix.EFBIG) {
		t.Errorf("inspect it: %v", err)
	}
}
