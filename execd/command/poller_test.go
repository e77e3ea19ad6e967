package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/test/wait"
)

// gate is a FIFO from which commands read a line before they go on.
func gate(t *testing.T) (path string, file *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return path, file
}

func TestRunningCommandsCostNoGoroutine(t *testing.T) {
	const commands = 200
	m := newManager(t)
	awaitEnd(t, start(t, m, command.Spec{Command: "true"})) // the poller runs
	path, file := gate(t)
	before := runtime.NumGoroutine()
	running := make([]*command.Command, commands)
	for i := range running {
		// They hold a fragment, and a timer is set for each.
		running[i] = start(t, m, command.Spec{Command: fmt.Sprintf("printf 'go? '; read -r x < %s; echo on", path), Timeout: time.Hour})
	}
	for _, c := range running {
		follow(t, c, 0, func(e event) bool { return e.Partial })
	}
	wait.Until(t, "only the poller is left", func() bool { return runtime.NumGoroutine() <= before })
	if _, err := file.WriteString(strings.Repeat("\n", commands)); err != nil {
		t.Fatal(err)
	}
	for _, c := range running {
		if got := rebuild(all(t, c), eventlog.TypeStdout); got != "go? on\n" {
			t.Errorf("stdout = %q", got)
		}
	}
}

// Where the kernel gives no descriptors of processes, everything is as usual.
func TestWithoutHandlesOfProcesses(t *testing.T) {
	m := newManager(t)
	command.WithoutHandles(m)
	for line, want := range map[string]struct {
		timeout time.Duration
		out     string
		code    int // -1: none
	}{
		"echo one; exit 3":                {0, "one\n", 3},
		"printf fragment":                 {0, "fragment", 0},
		"sleep 60":                        {50 * time.Millisecond, "", -1},
		"seq 100000 | tail -n 1":          {0, "100000\n", 0},
		"kill -9 $$":                      {0, "", 137},
		"(sleep 5; echo late) & echo now": {0, "now\n", 0},
	} {
		c := start(t, m, command.Spec{Command: line, Timeout: want.timeout})
		if got := rebuild(all(t, c), eventlog.TypeStdout); got != want.out {
			t.Errorf("%s: stdout = %q", line, got)
		}
		if code := c.Status().ExitCode; want.code < 0 && code != nil || want.code >= 0 && (code == nil || *code != want.code) {
			t.Errorf("%s: exit code %v, want %d", line, code, want.code)
		}
	}
	c := start(t, m, command.Spec{Command: "sleep 60"})
	if err := m.Interrupt(c.ID()); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, c)
	if status := c.Status(); *status.ExitCode != 143 {
		t.Errorf("status = %+v", status)
	}
}

// Commands that write to their files and to memory, with fragments, at the same time, each with
// readers: every byte of each is where it belongs.
func TestManyCommandsAtOnceKeepTheirBytes(t *testing.T) {
	m := newManager(t)
	var working sync.WaitGroup
	for i := range 24 {
		lines := 2000
		if i%3 == 0 {
			lines = 200_000 // beyond what memory holds
		}
		c := start(t, m, command.Spec{Command: fmt.Sprintf(`for i in 1 2 3 4 5; do printf 'a%d '; done; seq -f '%d %%.0f' %d; printf end`, i, i, lines)})
		working.Go(func() {
			var want strings.Builder
			want.WriteString(strings.Repeat(fmt.Sprintf("a%d ", i), 5))
			for n := range lines {
				fmt.Fprintf(&want, "%d %d\n", i, n+1)
			}
			want.WriteString("end")
			<-c.Done()
			var got strings.Builder
			if _, err := c.Log().Lines(-1).WriteTo(&got); err != nil || got.String() != want.String() {
				t.Errorf("command %d: %d bytes, want %d (%v)", i, got.Len(), want.Len(), err)
			}
		})
	}
	working.Wait()
}

// A grandchild that keeps the pipe is read on, so that it is neither killed nor stopped by a full
// pipe; its output belongs to no command.
func TestGrandchildMayGoOnWriting(t *testing.T) {
	m := newManager(t)
	path, file := gate(t)
	marker := filepath.Join(t.TempDir(), "written")
	c := start(t, m, command.Spec{Command: fmt.Sprintf("(read -r x < %s; head -c 1000000 /dev/zero && touch %s; sleep 60) & echo over", path, marker)})
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != "over\n" {
		t.Errorf("stdout = %q", got)
	}
	if _, err := file.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the grandchild has written far more than a pipe holds", func() bool { _, err := os.Stat(marker); return err == nil })
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != "over\n" {
		t.Errorf("stdout has become %q", got)
	}
}

// A timeout that comes when the process has just ended is none, and an interrupt neither.
func TestEndThatRacesWithItsTimeoutIsToldOnce(t *testing.T) {
	m := newManager(t)
	for i := range 100 {
		c := start(t, m, command.Spec{Command: "sleep 0.02", Timeout: time.Duration(18+i%8) * time.Millisecond})
		if i%2 == 0 {
			if err := m.Interrupt(c.ID()); err != nil {
				t.Fatal(err)
			}
		}
		events := all(t, c)
		exit, err := command.ParseExit([]byte(last(events).text))
		if err != nil || !ended(last(events)) || exit.TimedOut != (exit.Code == nil) || exit.TimedOut && exit.Reason == "" {
			t.Fatalf("the last event is %+v (%v)", last(events), err)
		}
		for _, e := range events[:len(events)-1] {
			if ended(e) {
				t.Fatal("more than one terminal event")
			}
		}
	}
}

func TestNoDescriptorIsLeft(t *testing.T) {
	m := newManager(t)
	awaitEnd(t, start(t, m, command.Spec{Command: "true"}))
	before := descriptors(t)
	long := strings.Repeat("x", 1<<20)
	for range 100 {
		if _, err := m.Start(command.Spec{Command: "true " + long, Env: map[string]string{"LONG": long}}); !invalid.Is(err) {
			t.Fatal(err)
		}
		awaitEnd(t, start(t, m, command.Spec{Command: "true " + long}))
		awaitEnd(t, start(t, m, command.Spec{Command: "echo out; echo err >&2"}))
	}
	wait.Until(t, "no descriptor is left", func() bool { return descriptors(t) <= before })
}
