package terminal_test

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/terminal"
	"sandbox.internal/test/wait"
)

func followed(t *testing.T, to *terminal.Terminal, live bool) *screen {
	t.Helper()
	s := &screen{t: t, viewer: to.Follow(live)}
	t.Cleanup(s.viewer.Close)
	return s
}

// TestFollowersMissNothing: of more than the history keeps.
func TestFollowersMissNothing(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	term := start(t, m, sh("read go; seq 200000; echo end"))
	first, second := followed(t, term, false), term.Follow(true)
	defer second.Close()
	var seen []byte
	over := make(chan error, 1)
	go func() {
		for {
			output, err := second.Next(wait.Context(t))
			if err != nil {
				over <- err
				return
			}
			seen = append(seen, output.Data...)
		}
	}()
	enter(t, term, "\n")
	first.end()
	if err := wait.For(t, "the end of the second follower", over); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := range 200_000 {
		want.WriteString(strconv.Itoa(i+1) + "\r\n")
	}
	want.WriteString("end\r\n")
	for name, text := range map[string][]byte{"first": first.text, "second": seen} {
		if !bytes.HasSuffix(text, want.Bytes()) || first.replays > 0 {
			t.Errorf("%s: %d bytes, %d replays; want %d bytes", name, len(text), first.replays, want.Len())
		}
	}
}

// TestLiveFollower: it gets nothing of the past.
func TestLiveFollower(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	term := start(t, m, sh("echo before; read go; echo after"))
	attach(t, term).until("before\r\n")
	live := followed(t, term, true)
	enter(t, term, "\n")
	live.end()
	if got := string(live.text); strings.Contains(got, "before") || !strings.Contains(got, "after") {
		t.Errorf("the follower saw %q", got)
	}
}

// TestFollowerThatTakesNothing: it holds up neither a kill nor, once it is closed, the program.
func TestFollowerThatTakesNothing(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	const script = "seq 200000; echo end"
	stuck := start(t, m, sh(script))
	followed(t, stuck, false)
	closed := start(t, m, sh(script))
	viewer := closed.Follow(false)
	watched := attach(t, closed)
	viewer.Close()
	watched.until("end\r\n")
	if code := exitCode(t, closed); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !stuck.Status().Running {
		t.Error("the program did not wait for its follower")
	}
	if err := m.Kill(stuck.ID()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of a terminal whose follower takes nothing", stuck.Done())
}

// TestSignalOfTheProgramAlone is about the one that the terminal runs.
func TestSignalOfTheProgramAlone(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	term := start(t, m, sh("trap 'echo caught' TERM; echo up $$; while :; do sleep 0.1; done"))
	s := attach(t, term)
	s.until("up " + strconv.Itoa(term.PID()) + "\r\n")
	if !term.Signal(syscall.SIGTERM) {
		t.Error("the program was not there")
	}
	s.until("caught")
	term.Signal(syscall.SIGKILL)
	if code := exitCode(t, term); code != 137 {
		t.Errorf("exit code %d", code)
	}
	if status := term.Status(); status.Wait.Signal() != syscall.SIGKILL || status.TimedOut {
		t.Errorf("the status is %+v", status)
	}
	if term.Signal(syscall.SIGKILL) {
		t.Error("a program that has ended was signalled")
	}
}

// TestAbruptTimeout: nothing is hung up before.
func TestAbruptTimeout(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	spec := sh("trap 'echo HUP' HUP; echo up; while :; do sleep 0.1; done")
	spec.Abrupt = true
	var term *terminal.Terminal
	var s *screen
	for spec.Timeout = time.Second / 2; s == nil || !bytes.Contains(s.text, []byte("up")); spec.Timeout *= 2 { // on a busy machine
		term = start(t, m, spec)
		s = attach(t, term)
		s.end()
	}
	if bytes.Contains(s.text, []byte("HUP")) {
		t.Errorf("the terminal shows %q", s.text)
	}
	status := term.Status()
	if !status.TimedOut || status.ExitCode != nil || status.Wait.Signal() != syscall.SIGKILL {
		t.Errorf("the status is %+v", status)
	}
}
