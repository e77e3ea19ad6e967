package command_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
)

// A command line may be longer than an argument of execve(2), which has less than 128 KiB, whatever
// the shell is and whoever it runs as.
func TestLongCommandLines(t *testing.T) {
	type shell struct {
		program string
		spec    command.Spec
	}
	shells := map[string]shell{"bash": {program: "bash"}, "dash": {program: "dash"}}
	if os.Geteuid() == 0 {
		shells["another user's bash"] = shell{"bash", command.Spec{UID: new(uint32(65534))}}
	}
	for name, shell := range shells {
		t.Run(name, func(t *testing.T) {
			spec := shell.spec
			program, err := exec.LookPath(shell.program)
			if err != nil {
				t.Fatal(err)
			}
			directory := publicDirectory(t)
			if err := os.Symlink(program, filepath.Join(directory, "bash")); err != nil { // the first that is looked for
				t.Fatal(err)
			}
			m := newManager(t, func(o *command.Options) { o.Dir, o.Env = "/", []string{"PATH=" + directory + ":/usr/bin:/bin"} })
			short := outputOf(t, m, spec, `echo "$0"; ls /proc/self/fd`)
			sizes := []int{64 << 10, 64<<10 + 1, 128<<10 - 1, 128 << 10, 2_000_000}
			if name == "dash" { // the fastest
				sizes = append(sizes, 16<<20)
			}
			for _, size := range sizes {
				line := "x=" + strings.Repeat("x", size-60)
				line += fmt.Sprintf("%*s", size-len(line), `; echo ${#x} "$0"; ls /proc/self/fd; cat; exit 7`)
				if len(line) != size {
					t.Fatalf("the line has %d bytes, not %d", len(line), size)
				}
				spec.Command = line
				c := start(t, m, spec)
				events := all(t, c)
				want := fmt.Sprintf("%d %s", size-60, short)
				if got := rebuild(events, eventlog.TypeStdout); got != want || *c.Status().ExitCode != 7 {
					t.Errorf("%d bytes: stdout %q, want %q; status %+v", size, got, want, c.Status().Error)
				}
			}
			heredoc := "cat <<'END' | wc -c\n" + strings.Repeat("a line of text\n", 20000) + "END\n"
			if got := strings.TrimSpace(outputOf(t, m, spec, heredoc)); got != "300000" {
				t.Errorf("a heredoc of 300000 bytes: %q", got)
			}
		})
	}
}

// publicDirectory makes a directory that every user may enter.
func publicDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("/tmp", "shell-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	return directory
}

// outputOf runs a command line and returns what it wrote to its standard output.
func outputOf(t *testing.T, m *command.Manager, spec command.Spec, line string) string {
	t.Helper()
	spec.Command = line
	return rebuild(all(t, start(t, m, spec)), eventlog.TypeStdout)
}
