package supervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/internal/supervisor"
	"sandbox.internal/test/wait"
)

func TestExitStatusIsTheEntrypoints(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, script string
		want         int
	}{
		{"success", "exit 0", 0},
		{"failure", "exit 7", 7},
		{"highest code", "exit 255", 255},
		{"SIGKILL", "kill -KILL $$", 137},
		{"SIGTERM", "kill -TERM $$", 143},
		{"SIGSEGV", "kill -SEGV $$", 139},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := start(t, plan{Entrypoint: shell(tt.script)}).wait(); got != tt.want {
				t.Errorf("exit code %d, want %d", got, tt.want)
			}
		})
	}
}

func TestEntrypointIsFoundLikeAShellDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"good/tool":      {"#!/bin/sh\nexit 42\n", 0o755},
		"denied/tool":    {"#!/bin/sh\nexit 43\n", 0o644},
		"good/plain":     {"exit 44\n", 0o755},
		"good/no-loader": {"#!/does/not/exist\n", 0o755},
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file.text), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	good, denied := filepath.Join(dir, "good"), filepath.Join(dir, "denied")

	tests := []struct {
		name, path, command string
		want                int
		message             string
	}{
		{"in PATH", "/nowhere:" + good, "tool", 42, ""},
		{"a later element wins over one without permission", denied + ":" + good, "tool", 42, ""},
		{"absolute", "/nowhere", good + "/tool", 42, ""},
		{"relative to the working directory", "/nowhere", "good/tool", 42, ""},
		{"an empty element is the working directory", ":/nowhere", "local", 45, ""},
		{"not in PATH", good, "missing", 127, "not found in PATH (" + good + ")"},
		{"no such path", good, "/no/such", 127, "no such file"},
		{"below a file", good, good + "/tool/x", 127, "not a directory"},
		{"no permission in PATH", denied, "tool", 126, "permission denied"},
		{"no permission", good, denied + "/tool", 126, "permission denied"},
		{"a directory", good, good, 126, "permission denied"},
		{"not a program", good, "plain", 126, "exec format error"},
		{"no interpreter", good, "no-loader", 127, "interpreter or loader"},
		{"empty", good, "", 127, "entrypoint is empty"},
	}
	if err := os.WriteFile(filepath.Join(dir, "local"), []byte("#!/bin/sh\nexit 45\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, plan{Entrypoint: []string{tt.command}, Env: []string{"PATH=" + tt.path}},
				func(cmd *exec.Cmd) { cmd.Dir = dir })
			if got := s.wait(); got != tt.want {
				t.Errorf("exit code %d, want %d; stderr: %s", got, tt.want, s.errors())
			}
			if tt.message == "" {
				return
			}
			if got := s.errors(); !strings.Contains(got, tt.message) || !strings.Contains(got, `"`+tt.command+`"`) && tt.command != "" {
				t.Errorf("stderr %q lacks %q or the command", got, tt.message)
			}
		})
	}
}

func TestEntrypointIsSearchedInTheUsualPlacesWithoutPath(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: []string{"sh", "-c", "exit 9"}}, func(cmd *exec.Cmd) {
		var env []string
		for _, entry := range cmd.Env {
			if !strings.HasPrefix(entry, "PATH=") {
				env = append(env, entry)
			}
		}
		cmd.Env = env
	})
	if got := s.wait(); got != 9 {
		t.Errorf("exit code %d, want 9; stderr: %s", got, s.errors())
	}
}

func TestSignalsReachTheEntrypoint(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGALRM, syscall.Signal(37), // SIGRTMIN+3
	} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			// Not with read: a signal that comes just before it waits would be handled after the
			// next line of input.
			s := start(t, plan{Entrypoint: shell(`trap "exit 3" "$1"; echo ready; while :; do sleep 0.02; done`, strconv.Itoa(int(sig)))})
			s.expect("ready")
			if err := s.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if got := s.wait(); got != 3 {
				t.Errorf("exit code %d, want the trap's 3", got)
			}
		})
	}
}

func TestSignalWithoutHandlerEndsTheEntrypoint(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: shell("echo ready; exec sleep 1000")})
	s.expect("ready")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.wait(); got != 143 {
		t.Errorf("exit code %d, want 143", got)
	}
}

// TestEntrypointThatDoesNotEndIsKilled: and the daemon is stopped as after any other end.
func TestEntrypointThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	const grace = 200 * time.Millisecond
	trace := filepath.Join(t.TempDir(), "trace")
	s := start(t, plan{
		Entrypoint: shell("trap '' TERM; echo ready; while :; do sleep 0.01; done"),
		Daemon:     shell(`trap 'echo stopped >> "$1"; exit 0' TERM; echo up >> "$1"; while :; do sleep 0.01; done`, trace),
		StopGrace:  grace, Grace: wait.Patience(),
	})
	s.expect("ready")
	wait.Until(t, "the daemon is up", func() bool { return content(t, trace) == "up\n" })
	began := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.wait(); got != 137 {
		t.Errorf("exit code %d, want 137", got)
	}
	if took := time.Since(began); took < grace {
		t.Errorf("killed after %v, before its grace of %v", took, grace)
	}
	if got := content(t, trace); got != "up\nstopped\n" {
		t.Errorf("the daemon's trace is %q", got)
	}
}

// TestOnlySIGTERMAsksForTheEnd: an entrypoint that gets another signal may go on.
func TestOnlySIGTERMAsksForTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: shell("trap 'echo again' HUP; echo ready; while :; do sleep 0.01; done"), StopGrace: time.Nanosecond})
	s.expect("ready")
	for range 3 {
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.expect("again")
	}
}

// TestStopSignal: the entrypoint gets the signal that its image names in place of SIGTERM, and
// every other signal as it is.
func TestStopSignal(t *testing.T) {
	s := start(t, plan{
		Entrypoint: shell("trap 'echo quit; exit 7' QUIT; trap 'echo term' TERM; trap 'echo again' HUP; echo ready; while :; do sleep 0.01; done"),
		StopSignal: syscall.SIGQUIT, Grace: wait.Patience(),
	})
	s.expect("ready")
	for _, sent := range []struct {
		signal syscall.Signal
		answer string
	}{{syscall.SIGHUP, "again"}, {syscall.SIGTERM, "quit"}} {
		if err := s.cmd.Process.Signal(sent.signal); err != nil {
			t.Fatal(err)
		}
		s.expect(sent.answer)
	}
	if got := s.wait(); got != 7 {
		t.Errorf("exit code %d, want the trap's 7", got)
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{
		"SIGQUIT": syscall.SIGQUIT, "quit": syscall.SIGQUIT, "3": syscall.SIGQUIT, "SIGKILL": syscall.SIGKILL, "SIGRTMIN": 34, "SIGRTMIN+3": 37,
		"RTMAX-1": 63, "SIGRTMAX": 64, "64": 64,
		"": 0, "0": 0, "65": 0, "-1": 0, "NOSUCH": 0, "SIG": 0, "SIGSTOP": 0, "19": 0, "SIGRTMIN-1": 0, "SIGRTMIN+31": 0, "SIGRTMINx": 0, "SIGRTMAX+1": 0,
		"SIGRTMAX-99999999999999999999": 0,
	} {
		if got := supervisor.ParseSignal(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	const script = `i=0; while [ $i -lt 50 ]; do (true &); i=$((i+1)); done; echo spawned; read line; exit 4`
	s := start(t, plan{Entrypoint: shell(script)})
	s.child("sleep 1000")
	s.expect("spawned")
	wait.Until(t, "only the entrypoint and the daemon are left", func() bool { return len(s.children()) == 2 })
	s.say("go\n")
	if got := s.wait(); got != 4 {
		t.Errorf("exit code %d, want 4: a reaped orphan must not be taken for the entrypoint", got)
	}
}

func TestOrphansAreReapedUnderAnotherInit(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: shell(`(sleep 999 & echo $!); read line`)},
		func(cmd *exec.Cmd) { cmd.SysProcAttr = nil })
	orphan := number(t, s.line())
	t.Cleanup(func() { _ = syscall.Kill(orphan, syscall.SIGKILL) }) // in case the test failed before
	if got := s.child("sleep 999").pid; got != orphan {
		t.Errorf("orphan is %d, want %d", got, orphan)
	}
	if err := syscall.Kill(orphan, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the orphan is gone", func() bool { return syscall.Kill(orphan, 0) == syscall.ESRCH })
	s.say("go\n")
	if got := s.wait(); got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
}

func TestEntrypointSeesNothingOfExecd(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	s := start(t, plan{
		Entrypoint: shell("env; echo end; read line"),
		Daemon:     shell(`printf %s "$EXECD_ACCESS_TOKEN" > "$1"; echo its errors >&2; exec sleep 1000`, token),
		Env:        []string{"EXECD_ACCESS_TOKEN=secret", "EXECD_LOG_FILE=/dev/null", "OWN=kept"},
	})
	var env []string
	for line := s.line(); line != "end"; line = s.line() {
		env = append(env, line)
		if strings.HasPrefix(line, "EXECD_") {
			t.Errorf("the entrypoint sees %q", line)
		}
	}
	if all := strings.Join(env, "\n"); !strings.Contains(all, "OWN=kept") {
		t.Errorf("the entrypoint lost its own variable:\n%s", all)
	}
	wait.Until(t, "the daemon got the token", func() bool { return content(t, token) == "secret" })
	wait.Until(t, "the daemon's errors are init's", func() bool { return strings.Contains(s.errors(), "its errors") })
}

// TestTheDaemonsOutputIsInits: the daemon's log goes to the standard output unless EXECD_LOG_FILE
// says otherwise.
func TestTheDaemonsOutputIsInits(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: shell("exec sleep 1000"), Daemon: shell("echo its log; exec sleep 1000")})
	if line := s.line(); line != "its log" {
		t.Errorf("the standard output has %q; stderr: %s", line, s.errors())
	}
}

func TestEntrypointAndDaemonLeadTheirOwnSessions(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: []string{"sleep", "998"}})
	for _, command := range []string{"sleep 998", "sleep 1000"} {
		if p := s.child(command); p.session != p.pid {
			t.Errorf("%q has session %d, want its own, %d", command, p.session, p.pid)
		}
	}
}
