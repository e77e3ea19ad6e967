package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/terminal"
	"sandbox.internal/test/wait"
)

func TestKill(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	for name, tc := range map[string]struct {
		spec  terminal.Spec
		type_ string
		code  int
		slow  bool
	}{
		"a program":               {spec: sh("echo ready; exec sleep 1000"), code: 129},
		"a shell":                 {spec: terminal.Spec{}, type_: "echo rea''dy; sleep 1000\r", code: 129},
		"a program that will not": {spec: sh("trap '' HUP; echo ready; sleep 1000"), code: 137, slow: true},
		"a stopped program":       {spec: sh("echo ready; kill -STOP $$; sleep 1000"), code: 129},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := start(t, m, tc.spec)
			if tc.type_ != "" {
				enter(t, running, tc.type_)
			}
			attach(t, running).until("ready\r\n")
			begin := time.Now()
			if err := m.Kill(running.ID()); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, running); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if took := time.Since(begin); tc.slow && took < 1900*time.Millisecond {
				t.Errorf("the program was killed after %v", took)
			}
			if err := m.Kill(running.ID()); err != nil {
				t.Errorf("killing it again: %v", err)
			}
		})
	}
}

// A shell ends at the signal; the program that it waits for may have something to finish.
func TestKillLetsTheGroupEnd(t *testing.T) {
	t.Parallel()
	saved := filepath.Join(t.TempDir(), "saved")
	m := newManager(t)
	// The kernel sends a second SIGHUP when the shell has ended.
	shell := start(t, m, sh(`sh -c 'trap "trap \"\" HUP; sleep 0.2; touch `+saved+`; exit" HUP; echo ready; while :; do sleep 0.01; done' & wait`))
	attach(t, shell).until("ready")
	if err := m.Kill(shell.ID()); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, shell); code != 129 {
		t.Errorf("exit code %d, want 129", code)
	}
	if _, err := os.Stat(saved); err != nil {
		t.Errorf("the program was killed before it had its time: %v", err)
	}
}

// A shell's foreground job is in a group of its own, and may outlive the shell.
func TestKillReachesTheForeground(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	shell := start(t, m, terminal.Spec{Command: "bash", Args: []string{"--norc"}})
	s := attach(t, shell)
	enter(t, shell, `sh -c 'trap "" HUP; echo pid=$$=; sleep 1000'`+"\r")
	var pid int
	for pid == 0 {
		if err := s.next(); err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(s.text), "pid=") {
			if number, _, ok := strings.Cut(part, "="); ok {
				pid, _ = strconv.Atoi(number)
			}
		}
	}
	if err := m.Kill(shell.ID()); err != nil {
		t.Fatal(err)
	}
	exitCode(t, shell)
	wait.Until(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
}

// gone reports whether a process has ended; one that has not been waited for counts.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) || syscall.Kill(pid, 0) != nil
}

// TestLastOutputOutlivesTheDrainTime: a daemon that does not run for that long, on a busy machine,
// still shows all of it.
func TestLastOutputOutlivesTheDrainTime(t *testing.T) {
	terminal.SetDrainTime(t, time.Nanosecond)
	m := newManager(t)
	for range 50 {
		s := attach(t, start(t, m, sh(`head -c 12000 /dev/zero | tr '\0' x`)))
		s.end()
		if len(s.text) != 12000 {
			t.Fatalf("the screen shows %d bytes, want 12000", len(s.text))
		}
	}
}

func TestBackgroundDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	release := filepath.Join(directory, "release")
	// The background ends with the directory, too, which the test may remove before the background
	// sees the file.
	running := start(t, newManager(t), sh(`(trap '' HUP; while test -d `+directory+` && ! test -e `+release+`; do sleep 0.05; done; echo late) & echo last`))
	s := attach(t, running)
	s.end() // while the background still waits
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(s.text); got != line("last\n") {
		t.Errorf("the screen shows %q", got)
	}
}

func TestEndedTerminalsAreForgotten(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	var ids []string
	for range 40 {
		ended := start(t, m, terminal.Spec{Command: "true"})
		exitCode(t, ended)
		ids = append(ids, ended.ID())
	}
	wait.Until(t, "32 terminals are remembered", func() bool { return len(m.List()) == 32 }, func() any { return len(m.List()) })
	if _, err := m.Get(ids[0]); !errors.Is(err, terminal.ErrNotFound) {
		t.Errorf("the oldest: %v", err)
	}
	var listed []string
	for _, each := range m.List() {
		listed = append(listed, each.ID())
	}
	if !slices.Equal(listed, ids[8:]) {
		t.Error("the list is not that of the youngest, in order")
	}
	if err := m.Kill("no-such-id"); !errors.Is(err, terminal.ErrNotFound) {
		t.Errorf("killing an unknown one: %v", err)
	}
}

// Arguments can be as long as the histories of many terminals: those that have ended are forgotten
// by bytes, too.
func TestEndedTerminalsAreForgottenByBytes(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	long := make([]string, 12)
	for i := range long {
		long[i] = strings.Repeat("x", 100<<10)
	}
	var ids []string
	for range 12 { // 14 MiB of arguments
		ended := start(t, m, terminal.Spec{Command: "true", Args: long})
		exitCode(t, ended)
		ids = append(ids, ended.ID())
	}
	wait.Until(t, "6 terminals are remembered", func() bool { return len(m.List()) == 6 }, func() any { return len(m.List()) })
	if _, err := m.Get(ids[11]); err != nil {
		t.Errorf("the youngest: %v", err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	obstinate := start(t, m, sh("trap '' HUP; echo ready; sleep 1000"))
	attach(t, obstinate).until("ready")
	now, cancel := context.WithCancel(t.Context())
	cancel()
	m.Stop(now)
	if code := exitCode(t, obstinate); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
	if _, err := m.Start(terminal.Spec{}); !errors.Is(err, terminal.ErrClosed) {
		t.Errorf("a stopped manager starts: %v", err)
	}
}

func TestNoDescriptorStays(t *testing.T) {
	m := newManager(t)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	exitCode(t, start(t, m, terminal.Spec{Command: "true"}))
	before := open()
	for range 20 {
		attached := start(t, m, terminal.Spec{Command: "true"})
		attach(t, attached).end()
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	ended := func(shell *terminal.Terminal) *int {
		t.Helper()
		wait.For(t, "the end of the terminal", shell.Done())
		return shell.Status().ExitCode
	}
	for name, script := range map[string]string{
		"a program that hangs up":        "sleep 1000",
		"a program that ends well":       "trap 'exit 0' HUP; while :; do sleep 0.01; done",
		"a program that ignores signals": "trap '' HUP; while :; do sleep 0.01; done",
	} {
		spec := sh(script)
		spec.Timeout = 200 * time.Millisecond
		if code := ended(start(t, m, spec)); code != nil {
			t.Errorf("%s: exit code %d", name, *code)
		}
	}
	spec := sh("exit 3")
	spec.Timeout = wait.Patience()
	if code := ended(start(t, m, spec)); code == nil || *code != 3 {
		t.Errorf("a program that ends in time: %v", code)
	}
}

// TestTimeoutInAFrozenSandbox: a program that was stopped must not run, not even to notice its end.
func TestTimeoutInAFrozenSandbox(t *testing.T) {
	t.Parallel()
	noticed := filepath.Join(t.TempDir(), "noticed")
	m := terminal.New(terminal.Options{
		Dir: t.TempDir(), Env: os.Environ(), Clock: time.Now,
		Enter: func() (func(), error) { return nil, errors.New("frozen") },
	})
	spec := sh("trap 'touch " + noticed + "' HUP; kill -STOP $$; sleep 1000")
	spec.Timeout = 300 * time.Millisecond
	began := time.Now()
	stopped := start(t, m, spec)
	wait.For(t, "the end of the terminal", stopped.Done())
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the terminal ended after %v", took)
	}
	if code := stopped.Status().ExitCode; code != nil {
		t.Errorf("exit code %d", *code)
	}
	if _, err := os.Stat(noticed); err == nil {
		t.Error("the program ran")
	}
}
