package failpoint

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sandbox.internal/test/wait"
)

// hitterVariable makes this program one that hits failpoints of the directory that is its value.
const hitterVariable = "FAILPOINT_TEST_FOLDER"

func TestMain(m *testing.M) {
	if in := os.Getenv(hitterVariable); in != "" {
		directory = in
		Hit("other")
		Hit("place")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestHit: each file of an armed failpoint kills one process that comes to it; what is not armed
// kills none.
func TestHit(t *testing.T) {
	Hit("place") // in a program that the linker has not armed
	in := t.TempDir()
	armed := filepath.Join(in, "place")
	if err := os.Mkdir(armed, 0o700); err != nil {
		t.Fatal(err)
	}
	const kills = 2
	for i := range kills {
		if err := os.WriteFile(filepath.Join(armed, string(rune('a'+i))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for run := range kills + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		hitter := exec.CommandContext(ctx, "/proc/self/exe")
		hitter.Env = append(os.Environ(), hitterVariable+"="+in)
		err := hitter.Run()
		cancel()
		var ended *exec.ExitError
		killed := errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && ctx.Err() == context.Canceled
		if killed != (run < kills) {
			t.Errorf("run %d: %v", run, err)
		}
		left, err := os.ReadDir(armed)
		if want := max(0, kills-run-1); err != nil || len(left) != want {
			t.Errorf("after run %d %d kills are left, want %d (%v)", run, len(left), want, err)
		}
	}
}
