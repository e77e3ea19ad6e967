package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

func TestStreamTellsInitOutputAndEnd(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: `echo one; echo; echo two >&2; printf three`})
	events := all(t, c)
	if first := events[0]; first.Type != eventlog.TypeInit || first.text != c.ID() || first.ID != 1 {
		t.Errorf("first event = %+v, want init with the id %s", first, c.ID())
	}
	for i, e := range events {
		if e.ID != int64(i+1) {
			t.Errorf("event %d has id %d", i, e.ID)
		}
	}
	if got := rebuild(events, eventlog.TypeStdout); got != "one\n\nthree" {
		t.Errorf("stdout = %q", got)
	}
	if got := rebuild(events, eventlog.TypeStderr); got != "two\n" {
		t.Errorf("stderr = %q", got)
	}
	end := last(events)
	exit, err := command.ParseExit([]byte(end.text))
	if end.Type != eventlog.TypeComplete || err != nil || *exit.Code != 0 || exit.Duration <= 0 {
		t.Errorf("last event = %+v", end)
	}
}

func TestExactlyOneTerminalEvent(t *testing.T) {
	m := newManager(t)
	for _, test := range []struct {
		name, command string
		timeout       time.Duration
		want          eventlog.Type
		code          int // -1: none
		reason        string
	}{
		{"success", "true", 0, eventlog.TypeComplete, 0, ""},
		{"failure", "exit 7", 0, eventlog.TypeError, 7, "exit code 7"},
		{"signal", "kill -9 $$", 0, eventlog.TypeError, 137, "signal 9"},
		{"timeout", "sleep 60", 50 * time.Millisecond, eventlog.TypeError, -1, "timeout of 50 ms"},
		{"timeout of a command that then succeeds", "trap 'exit 0' TERM; while :; do sleep 0.01; done", 50 * time.Millisecond, eventlog.TypeError, -1, "timeout"},
		{"not found", "no-such-program", 0, eventlog.TypeError, 127, "exit code 127"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := start(t, m, command.Spec{Command: test.command, Timeout: test.timeout})
			events := all(t, c)
			terminal := 0
			for _, e := range events {
				if e.Type == eventlog.TypeComplete || e.Type == eventlog.TypeError {
					terminal++
				}
			}
			end := last(events)
			if terminal != 1 || end.Type != test.want {
				t.Fatalf("%d terminal events, the last is %s", terminal, end.Type)
			}
			status := c.Status()
			if status.Running || status.FinishedAt.IsZero() || !strings.Contains(status.Error, test.reason) {
				t.Errorf("status = %+v", status)
			}
			switch {
			case test.code < 0 && status.ExitCode != nil:
				t.Errorf("exit code = %d, want none", *status.ExitCode)
			case test.code >= 0 && (status.ExitCode == nil || *status.ExitCode != test.code):
				t.Errorf("exit code = %v, want %d", status.ExitCode, test.code)
			}
		})
	}
}

func TestManyLinesArriveCompleteAndInOrder(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "seq 300000"})
	var want bytes.Buffer
	for i := 1; i <= 300000; i++ {
		fmt.Fprintln(&want, i)
	}
	events := all(t, c)
	if got := rebuild(events, eventlog.TypeStdout); got != want.String() {
		t.Fatalf("%d bytes arrived, want %d", len(got), want.Len())
	}
	var log bytes.Buffer
	lines := c.Log().Lines(-1)
	if _, err := lines.WriteTo(&log); err != nil || log.String() != want.String() || lines.Last != 299999 {
		t.Errorf("log: %d bytes, last line %d, error %v", log.Len(), lines.Last, err)
	}
}

func TestStreamCutAnywhereResumesToTheSameBytes(t *testing.T) {
	m := newManager(t)
	// Long lines, short lines, fragments and bytes that are no UTF-8, more than the memory part of
	// the log holds.
	c := start(t, m, command.Spec{Command: `seq 100000; head -c 300000 /dev/zero | tr '\0' x; echo; head -c 1500000 /dev/urandom; printf end`})
	awaitEnd(t, c)
	want := digest(all(t, c))
	cuts := random.New(t)
	for round := range 3 {
		var events []event
		for cut := 0; ; cut++ {
			after := int64(0)
			if len(events) > 0 {
				after = last(events).ID
			}
			left := cuts.IntN(8000) + 1
			events = append(events, follow(t, c, after, func(event) bool { left--; return left == 0 })...)
			if ended(last(events)) {
				break
			}
		}
		if got := digest(events); got != want {
			t.Errorf("round %d: %x, want %x", round, got, want)
		}
	}
}

func TestCommandNeverWaitsForItsReader(t *testing.T) {
	m := newManager(t)
	const lines = 2_000_000 // more than the buffers on the way hold
	c := start(t, m, command.Spec{Command: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' '\\n'", lines)})
	r, err := c.Log().Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, ok, err := r.Next(); !ok || err != nil {
		t.Fatal("no init event", err)
	}
	awaitEnd(t, c) // without a reader
	count := 0
	for {
		e, ok, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || !ok {
			t.Fatal("the log of an ended command has a gap", err)
		}
		if e.Type == eventlog.TypeStdout {
			count++
		}
	}
	if count != lines {
		t.Errorf("%d lines, want %d", count, lines)
	}
}

func TestGrandchildDoesNotHoldTheStream(t *testing.T) {
	m := newManager(t)
	dir := t.TempDir()
	release, marker := filepath.Join(dir, "release"), filepath.Join(dir, "alive")
	c := start(t, m, command.Spec{Command: fmt.Sprintf("(until test -e %s; do sleep 0.05; done; echo late; echo late; touch %s) & echo early", release, marker)})
	events := all(t, c) // ends while the grandchild still waits
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := rebuild(events, eventlog.TypeStdout); got != "early\n" {
		t.Errorf("stdout = %q", got)
	}
	// Its pipe stays open: writing to it must not kill the grandchild.
	wait.Until(t, "the grandchild lives on", func() bool { _, err := os.Stat(marker); return err == nil })
}

func TestLastBytesOfAProcessAreNeverLost(t *testing.T) {
	m := newManager(t)
	for range 50 {
		c := start(t, m, command.Spec{Command: "sleep 5 & head -c 50000 /dev/zero | tr '\\0' a; printf Z; kill $!"})
		got := rebuild(all(t, c), eventlog.TypeStdout)
		if len(got) != 50001 || !strings.HasSuffix(got, "aZ") {
			t.Fatalf("%d bytes", len(got))
		}
	}
}

func TestRefusals(t *testing.T) {
	m := newManager(t)
	for _, test := range []struct {
		name, want string
		spec       command.Spec
	}{
		{"empty command", "command:", command.Spec{Command: " "}},
		{"NUL", "command:", command.Spec{Command: "a\x00b"}},
		{"missing directory", "cwd:", command.Spec{Command: "true", Dir: "/no/such/directory"}},
		{"file as directory", "cwd:", command.Spec{Command: "true", Dir: "/etc/passwd"}},
		{"variable name", "envs:", command.Spec{Command: "true", Env: map[string]string{"a=b": "c"}}},
		{"too long", "envs:", command.Spec{Command: "true", Env: map[string]string{"LONG": strings.Repeat("x", 1<<20)}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := m.Start(test.spec)
			if !invalid.Is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want an invalid.Error that names %s", err, test.want)
			}
		})
	}
}

func TestEnvironmentUserAndDirectory(t *testing.T) {
	m := newManager(t, func(o *command.Options) { o.Env = append(o.Env, "EXECD_ACCESS_TOKEN=secret", "KEEP=1") })
	uid := uint32(65534)
	c := start(t, m, command.Spec{
		Command: `echo "$A:$KEEP:$EXECD_ACCESS_TOKEN:$(pwd):$(id -u):$PWD"`,
		Env:     map[string]string{"A": "b c"}, Dir: "/tmp", UID: &uid,
	})
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != "b c:1::/tmp:65534:/tmp\n" {
		t.Errorf("stdout = %q", got)
	}
}

func TestStopLeavesNothingBehind(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "sleep 300"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m.Stop(ctx)
	if status := c.Status(); status.Running {
		t.Error("a command survived Stop")
	}
	if _, err := m.Start(command.Spec{Command: "true"}); !errors.Is(err, command.ErrClosed) {
		t.Errorf("start after Stop: %v", err)
	}
}

// Command lines can be as long as the output that is kept: they count as much for what is
// forgotten.
func TestCommandLinesCountAsHeld(t *testing.T) {
	m := newManager(t)
	line := "true " + strings.Repeat("x", 100<<10)
	c := start(t, m, command.Spec{Command: line})
	awaitEnd(t, c)
	if memory, _ := c.Log().Held(); memory < int64(len(line)) {
		t.Errorf("a command line of %d bytes counts as %d", len(line), memory)
	}
}

// TestEndedCommandHoldsLittle: a thousand of them are remembered.
func TestEndedCommandHoldsLittle(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "exec sleep 600"})
	if err := m.Interrupt(c.ID()); err != nil {
		t.Fatal(err)
	}
	all(t, c) // to the end, without having asked for Done before
	if status := c.Status(); status.Running || status.ExitCode == nil || *status.ExitCode != 143 || status.FinishedAt.IsZero() {
		t.Errorf("after the last event of the stream its status is %+v", status)
	}
	awaitEnd(t, c)
	if memory, disk := c.Log().Held(); memory > 256 || disk > 0 {
		t.Errorf("%d bytes are held in memory, %d on disk", memory, disk)
	}
}

func TestEventThatDoesNotExistIsRefused(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "true"})
	awaitEnd(t, c)
	for _, id := range []int64{-1, 3, 1 << 40} {
		if _, err := c.Log().Reader(id); !errors.Is(err, eventlog.ErrNoEvent) {
			t.Errorf("events after %d: %v", id, err)
		}
	}
	if events := follow(t, c, 2, nil); len(events) != 0 {
		t.Errorf("events after the last one: %+v", events)
	}
}
