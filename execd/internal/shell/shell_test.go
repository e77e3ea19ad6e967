package shell_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/execd/internal/shell"
	"sandbox.internal/test/wait"
)

// TestMain lets the test binary be the shell: a shell is a process of its own, with standard
// streams and an exit code.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "sh" {
		os.Exit(shell.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func TestShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tests := []struct {
		name   string
		args   []string
		stdin  string
		stdout string
		stderr string // a part of it
		code   int
	}{
		{name: "output", args: []string{"-c", `echo out; echo err >&2`}, stdout: "out\n", stderr: "err"},
		{name: "exit code", args: []string{"-c", `exit 42`}, code: 42},
		{name: "exit code of the last command", args: []string{"-c", `true; false`}, code: 1},
		{name: "pipe", args: []string{"-c", `printf 'b\na\n' | sort | tr a-z A-Z`}, stdout: "A\nB\n"},
		{name: "pipe from a failure", args: []string{"-c", `false | true`}},
		{name: "pipefail", args: []string{"-c", `set -o pipefail; false | true`}, code: 1},
		{name: "redirects", args: []string{"-c", `echo one > f; echo two >> f; cat < f; ls no-such-file 2>/dev/null || echo none`}, stdout: "one\ntwo\nnone\n"},
		{name: "here document", args: []string{"-c", "cat <<E\n$((6*7))\nE"}, stdout: "42\n"},
		{name: "variables", args: []string{"-c", `A=1; export B=2; sh -c 'echo "[$A$B]"'`}, stdout: "[2]\n"},
		{name: "environment", args: []string{"-c", `echo "$GREETING from ${PWD##*/}"`}, stdout: "hello from " + filepath.Base(dir) + "\n"},
		{name: "loop and substitution", args: []string{"-c", `for i in $(printf '1 2 3'); do [ $i = 2 ] && continue; echo $i; done`}, stdout: "1\n3\n"},
		{name: "standard input", args: []string{"-c", `read line; echo "got $line"`}, stdin: "this\n", stdout: "got this\n"},
		{name: "unknown program", args: []string{"-c", `no-such-program`}, stderr: "no-such-program", code: 127},
		{name: "syntax error", args: []string{"-c", `echo "open`}, stderr: "quote", code: 2},
		{name: "no command", args: nil, stderr: "usage: execd sh -c command", code: 2},
		{name: "other flag", args: []string{"-x", "ls"}, stderr: "usage", code: 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			command := wait.Command(t, "/proc/self/exe", append([]string{"sh"}, test.args...)...)
			var stdout, stderr bytes.Buffer
			command.Stdin, command.Stdout, command.Stderr = strings.NewReader(test.stdin), &stdout, &stderr
			command.Dir = dir
			command.Env = append(os.Environ(), "GREETING=hello", "PWD="+dir)
			err := command.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if stdout.String() != test.stdout || command.ProcessState.ExitCode() != test.code {
				t.Errorf("said %q and exited with %d, want %q and %d; stderr: %s",
					stdout.String(), command.ProcessState.ExitCode(), test.stdout, test.code, stderr.String())
			}
			if !strings.Contains(stderr.String(), test.stderr) || test.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr is %q, want %q", stderr.String(), test.stderr)
			}
		})
	}
}

// A command line that is too long for an argument comes as a descriptor, which the programs that it
// runs do not have.
func TestShellReadsADescriptor(t *testing.T) {
	t.Parallel()
	line := filepath.Join(t.TempDir(), "line")
	text := "x=" + strings.Repeat("x", 200_000) + "\necho ${#x}; ls /proc/self/fd | tr '\\n' ' '; exit 3\n"
	if err := os.WriteFile(line, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(line)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	list := "ls /proc/self/fd | tr '\\n' ' '" // with what the test itself has inherited
	want, err := wait.Command(t, os.Args[0], "sh", "-c", list).Output()
	if err != nil {
		t.Fatal(err)
	}
	command := wait.Command(t, os.Args[0], "sh", "/proc/self/fd/3")
	command.ExtraFiles = []*os.File{file}
	out, err := command.Output()
	if string(out) != "200000\n"+string(want) || command.ProcessState.ExitCode() != 3 {
		t.Errorf("stdout %q, want %q; %v", out, want, err)
	}
}
