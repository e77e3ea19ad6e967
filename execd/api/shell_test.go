package api_test

import (
	"os"
	"path/filepath"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// TestImageWithoutAShell hides every shell of the machine from the daemon, whose own then runs the
// commands.
func TestImageWithoutAShell(t *testing.T) {
	t.Parallel()
	hidden := map[string]string{}
	for _, directory := range []string{"/bin", "/usr/bin", "/usr/local/bin"} {
		if resolved, err := filepath.EvalSymlinks(directory); err == nil {
			hidden[resolved] = "size=1m"
		}
	}
	d := (&child{Tmpfs: hidden, Env: []string{"PATH=/no/such/directory"}}).start(t, newTransport(t))
	tests := []struct {
		name, line string
		stdout     string
		code       string
	}{
		{"built-in commands", `for i in 1 2; do echo "line $i"; done; [ -e /bin/sh ] || echo no shell`, "line 1\nline 2\nno shell\n", "0"},
		{"exit code", `echo before; exit 9`, "before\n", "9"},
		{"unknown program", `ls`, "", "127"},
		{"another program", `/proc/self/exe sh -c 'echo nested'`, "nested\n", "0"},
		{"redirect", `cd ` + t.TempDir() + `; echo kept > f; read x < f; echo "$x"`, "kept\n", "0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := d.run(t, gen.CommandRequest{Command: test.line})
			s.until("init")
			events := s.all(2)
			last := events[len(events)-1]
			if got := joined(events, "stdout"); got != test.stdout || string(last.ExitCode) != test.code {
				t.Errorf("said %q and ended with %s; stderr: %q", got, last.data, joined(events, "stderr"))
			}
		})
	}
}

// TestWorkingDirectory: a path that is not absolute starts where the contract says.
func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	must(t, os.Mkdir(filepath.Join(home, "work"), 0o755))
	here, err := os.Getwd()
	must(t, err)
	d := (&child{Env: []string{"HOME=" + home}}).start(t, newTransport(t))
	for _, test := range []struct{ cwd, want string }{
		{"", here},
		{"~", home},
		{"~/work", home + "/work"},
		{"..", filepath.Dir(here)},
		{home, home},
	} {
		request := gen.CommandRequest{Command: `echo "$PWD"; pwd -P`}
		if test.cwd != "" {
			request.Cwd = &test.cwd
		}
		s := d.run(t, request)
		s.until("init")
		if got, want := joined(s.all(2), "stdout"), test.want+"\n"+test.want+"\n"; got != want {
			t.Errorf("with cwd %q: got %q, want %q", test.cwd, got, want)
		}
	}
}
