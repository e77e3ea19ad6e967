package command_test

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
)

func TestFragmentsAreShownSoon(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "printf 'name? '; sleep 60"})
	events := follow(t, c, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })
	if e := last(events); e.text != "name? " || !e.Partial {
		t.Errorf("event = %+v", e)
	}
	if lines := c.Log().Lines(-1); lines.Last != -1 {
		t.Errorf("an unfinished line counts: %d", lines.Last)
	}
	if err := m.Interrupt(c.ID()); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, c)
	if lines := c.Log().Lines(-1); lines.Last != 0 {
		t.Errorf("the last line of an ended command does not count: %d", lines.Last)
	}
}

func TestFragmentsKeepRunesWhole(t *testing.T) {
	m := newManager(t)
	command.SetRuneDelay(m, time.Minute) // a machine may be so busy that a second is short
	for line, want := range map[string]string{
		`printf 'a\303'; sleep 0.1; printf '\251b'`:                                            "aéb",
		`printf '\303'; sleep 0.1; printf '\251'; sleep 60 & sleep 0.1; printf x`:              "éx",
		`printf '\360'; for b in '\237' '\230' '\200'; do sleep 0.1; printf "$b"; done; echo`:  "😀\n",
		`printf '\303'; sleep 0.1; printf '\251\342'; sleep 0.1; printf '\202\254'; sleep 0.1`: "é€",
		`printf 'caf\303' >&2; echo out; sleep 0.1; printf '\251' >&2`:                         "out\ncafé",
	} {
		events := all(t, start(t, m, command.Spec{Command: line}))
		for _, e := range events {
			if !utf8.ValidString(e.text) {
				t.Errorf("%s: fragment %q", line, e.text)
			}
		}
		if got := rebuild(events, eventlog.TypeStdout) + rebuild(events, eventlog.TypeStderr); got != want {
			t.Errorf("%s: output %q, want %q", line, got, want)
		}
	}
	long := start(t, m, command.Spec{Command: `head -c 200001 /dev/zero | sed 's/\x00/é/g'`})
	for _, e := range all(t, long) {
		if e.Type == eventlog.TypeStdout && strings.ToValidUTF8(e.text, "") != e.text {
			t.Error("a fragment of a long line cuts a rune in two")
		}
	}
}

// What is no character, or does not become one, is shown all the same.
func TestFragmentsThatAreNoRunes(t *testing.T) {
	m := newManager(t)
	command.SetRuneDelay(m, 50*time.Millisecond)
	for _, want := range []string{"\303", "\360\237", "\377", "a\351"} {
		c := start(t, m, command.Spec{Command: fmt.Sprintf("printf %q; sleep 60", want)})
		got := ""
		follow(t, c, 0, func(e event) bool {
			if e.Type == eventlog.TypeStdout {
				got += e.text
			}
			return got == want
		})
		if err := m.Interrupt(c.ID()); err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, c)
	}
}

func TestLinesAfterACursor(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "printf 'zero\none\n'; printf two"})
	awaitEnd(t, c)
	for _, test := range []struct {
		after int64
		want  string
	}{{-1, "zero\none\ntwo"}, {0, "one\ntwo"}, {1, "two"}, {2, ""}, {99, ""}} {
		lines := c.Log().Lines(test.after)
		var b strings.Builder
		if _, err := lines.WriteTo(&b); err != nil || b.String() != test.want || lines.Last != 2 {
			t.Errorf("after %d: %q, last %d, error %v; want %q", test.after, b.String(), lines.Last, err, test.want)
		}
	}
}

func TestCursorsTakeALogInAnyPortions(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "seq 50000; for i in $(seq 50); do printf 'a'; printf 'e\n' >&2; sleep 0.005; done; seq 250000; printf end"})
	var got bytes.Buffer
	cursor := int64(-1)
	for ended := false; !ended; {
		select {
		case <-c.Done():
			ended = true
		case <-time.After(time.Millisecond):
		}
		lines := c.Log().Lines(cursor)
		var portion bytes.Buffer
		if _, err := lines.WriteTo(&portion); err != nil {
			t.Fatal(err)
		}
		complete := portion.Bytes()
		if !ended { // what is behind the last newline comes again
			complete = complete[:bytes.LastIndexByte(complete, '\n')+1]
		}
		if n := cursor + int64(bytes.Count(complete, []byte("\n"))); !ended && n != lines.Last {
			t.Fatalf("%d lines are complete, the last one is %d", n+1, lines.Last)
		}
		got.Write(complete)
		cursor = lines.Last
	}
	var want bytes.Buffer
	if _, err := c.Log().Lines(-1).WriteTo(&want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("portions give %d bytes, the whole %d", got.Len(), want.Len())
	}
}

func TestOutputBeyondTheLimitIsToldNotHidden(t *testing.T) {
	m := newManager(t, func(o *command.Options) { o.LogLimit = 100000 })
	c := start(t, m, command.Spec{Command: "seq 100000"})
	events := all(t, c)
	var statuses []string
	for _, e := range events {
		if e.Type == eventlog.TypeStatus {
			statuses = append(statuses, e.text)
		}
	}
	kept := len(rebuild(events, eventlog.TypeStdout))
	if kept > 100000 || len(statuses) != 2 || !strings.Contains(statuses[1], fmt.Sprint(588895-kept)) {
		t.Errorf("%d bytes kept, statuses %q", kept, statuses)
	}
	if last(events).Type != eventlog.TypeComplete {
		t.Error("a command whose output was cut did not complete")
	}
}

func TestFullDiskCutsOutputAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatalf("mount a small tmpfs (tests run as root): %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	m := newManager(t, func(o *command.Options) { o.SpoolDir = dir })
	c := start(t, m, command.Spec{Command: "head -c 8000000 /dev/zero; echo"})
	events := all(t, c)
	kept := len(rebuild(events, eventlog.TypeStdout))
	if kept < 2<<20 || kept > 4<<20 {
		t.Errorf("%d bytes kept", kept)
	}
	if end := last(events); end.Type != eventlog.TypeComplete {
		t.Errorf("last event = %+v", end)
	}
	if status := events[len(events)-3]; status.Type != eventlog.TypeStatus || !strings.Contains(status.text, "no space left") {
		t.Errorf("the stream does not say why: %q", status.text)
	}
}
