package supervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// withExitFile gives the first process a file for its exit status as descriptor 3.
func withExitFile(t *testing.T) (path string, option func(*exec.Cmd)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "exit")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return path, func(command *exec.Cmd) {
		command.ExtraFiles = append(command.ExtraFiles, file)
		command.Env = append(command.Env, "EXECD_EXIT_FD=3")
	}
}

func TestExitStatusIsWritten(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plan plan
		want string
	}{
		"success":    {plan{Entrypoint: shell("exit 0")}, "0\n"},
		"failure":    {plan{Entrypoint: shell("exit 7")}, "7\n"},
		"signal":     {plan{Entrypoint: shell("kill -SEGV $$")}, "139\n"},
		"no program": {plan{Entrypoint: []string{"/no/such"}}, "127\n"},
		"daemon":     {plan{Entrypoint: shell("exit 1"), Daemon: shell("exit 9"), AwaitReady: true}, "9\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, option := withExitFile(t)
			status := start(t, test.plan, option).wait()
			if got := content(t, path); got != test.want {
				t.Errorf("exit file has %q, want %q; exit code %d", got, test.want, status)
			}
		})
	}
}

// TestExitFileStaysWithTheFirstProcess: neither entrypoint nor daemon can say how the container
// ended.
func TestExitFileStaysWithTheFirstProcess(t *testing.T) {
	t.Parallel()
	const look = `readlink /proc/self/fd/* ; env | grep ^EXECD_EXIT_FD=; true`
	path, option := withExitFile(t)
	daemon := filepath.Join(t.TempDir(), "daemon")
	s := start(t, plan{
		Entrypoint: shell(look + "; echo end; read line; exit 3"),
		Daemon:     shell("("+look+`) > "$1.new"; mv "$1.new" "$1"; exec sleep 1000`, daemon),
	}, option)
	var seen []string
	for line := s.line(); line != "end"; line = s.line() {
		seen = append(seen, line)
	}
	wait.Until(t, "the daemon has looked", func() bool { return content(t, daemon) != "" })
	for who, text := range map[string]string{"entrypoint": strings.Join(seen, "\n"), "daemon": content(t, daemon)} {
		if strings.Contains(text, path) || strings.Contains(text, "\nEXECD_EXIT_FD=") {
			t.Errorf("the %s has:\n%s", who, text)
		}
		if !strings.Contains(text, "/") {
			t.Errorf("the %s has seen nothing: %q", who, text)
		}
	}
	s.say("go\n")
	if got := s.wait(); got != 3 || content(t, path) != "3\n" {
		t.Errorf("exit code %d, exit file %q", got, content(t, path))
	}
}

func TestExitFileMustBeOpen(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"99", "1", "x", "-1"} {
		s := start(t, plan{Entrypoint: shell("exit 0")}, func(command *exec.Cmd) {
			command.Env = append(command.Env, "EXECD_EXIT_FD="+number)
		})
		if got := s.wait(); got != 2 || !strings.Contains(s.errors(), `EXECD_EXIT_FD: must be the number of an open file, 3 or more, got "`+number+`"`) {
			t.Errorf("%s: exit code %d, stderr %q", number, got, s.errors())
		}
	}
}
