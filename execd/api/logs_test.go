package api_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

// logs reads a command's output after a cursor, and returns it with the next one.
func (d *daemon) logs(t *testing.T, id string, cursor *int64) (string, int64) {
	t.Helper()
	response, err := d.client.GetCommandLogs(t.Context(), id, &gen.GetCommandLogsParams{Cursor: cursor})
	text := string(body(t, response, err))
	next, err := strconv.ParseInt(response.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"), 10, 64)
	must(t, err)
	return text, next
}

func (d *daemon) ended(t *testing.T, id string) {
	t.Helper()
	wait.Until(t, "the command ends", func() bool { return !d.status(t, id).Running })
}

func TestLogsAfterACursor(t *testing.T) {
	t.Parallel()
	d := start(t)
	silent := d.background(t, "true")
	// Both streams in one pipe: between two pipes only the order within each of them is certain.
	id := d.background(t, "(echo one; echo two >&2; echo; printf four) 2>&1")
	d.ended(t, id)
	d.ended(t, silent)
	tests := []struct {
		name   string
		id     string
		cursor *int64
		want   string
		next   int64
	}{
		{"whole", id, nil, "one\ntwo\n\nfour", 3},
		{"from the beginning", id, new(int64(-1)), "one\ntwo\n\nfour", 3},
		{"after the first", id, new(int64(0)), "two\n\nfour", 3},
		{"the unfinished last line", id, new(int64(2)), "four", 3},
		{"nothing new", id, new(int64(3)), "", 3},
		{"beyond the end", id, new(int64(1000)), "", 3},
		{"far beyond the end", id, new(int64(math.MaxInt64)), "", 3},
		{"no output", silent, nil, "", -1},
		{"no output after its own cursor", silent, new(int64(-1)), "", -1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text, next := d.logs(t, test.id, test.cursor)
			if text != test.want || next != test.next {
				t.Errorf("got %q and %d, want %q and %d", text, next, test.want, test.next)
			}
		})
	}
}

// TestLogsReportWhatWasCut: a client that reads the logs alone must not take a part of the output
// for all of it.
func TestLogsReportWhatWasCut(t *testing.T) {
	t.Parallel()
	d := startWith(t, config.Settings{CommandLogLimit: 5})
	for line, want := range map[string]struct{ text, dropped string }{"echo fits": {"fits\n", ""}, "echo 'does not fit'": {"", "13"}} {
		id := d.background(t, line)
		d.ended(t, id)
		response, err := d.client.GetCommandLogs(t.Context(), id, nil)
		if text := string(body(t, response, err)); text != want.text {
			t.Errorf("%s: %q is kept, want %q", line, text, want.text)
		}
		if got := response.Header.Get("EXECD-COMMANDS-DROPPED-BYTES"); got != want.dropped {
			t.Errorf("%s: %q bytes were cut, want %q", line, got, want.dropped)
		}
	}
}

// TestLogsOfARunningCommandHaveItsUnfinishedLine: a prompt is seen, the cursor does not count it,
// and what follows the cursor has all of the line once it is complete.
func TestLogsOfARunningCommandHaveItsUnfinishedLine(t *testing.T) {
	t.Parallel()
	d := start(t)
	gate := filepath.Join(t.TempDir(), "gate")
	must(t, syscall.Mkfifo(gate, 0o600))
	release, err := os.OpenFile(gate, os.O_RDWR, 0)
	must(t, err)
	defer release.Close()
	id := d.background(t, fmt.Sprintf(`printf 'Password: '; read -r x < %[1]s; printf 'ok\nSure? '; read -r x < %[1]s; printf 'yes'`, gate))
	for _, step := range []struct {
		cursor *int64
		want   string
		next   int64
	}{
		{nil, "Password: ", -1},
		{new(int64(-1)), "Password: ok\nSure? ", 0},
		{new(int64(0)), "Sure? ", 0},
	} {
		var text string
		var next int64
		wait.Until(t, fmt.Sprintf("the logs have %q", step.want), func() bool {
			text, next = d.logs(t, id, step.cursor)
			return text == step.want
		})
		if next != step.next {
			t.Errorf("%q: the cursor is %d, want %d", text, next, step.next)
		}
		if text, _ := d.logs(t, id, new(int64(1))); text != "" {
			t.Errorf("after line 1, which there is not yet, %q", text)
		}
		if step.next < 0 || step.cursor != nil && *step.cursor == 0 {
			_, err := release.WriteString("\n")
			must(t, err)
		}
	}
	d.ended(t, id)
	if text, next := d.logs(t, id, new(int64(0))); text != "Sure? yes" || next != 1 {
		t.Errorf("at the end: %q and %d", text, next)
	}
}

// TestPollingLosesAndRepeatsNothing follows a command as the contract describes, with unfinished
// lines on the way.
func TestPollingLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	d := start(t)
	written := filepath.Join(t.TempDir(), "written")
	id := d.background(t, fmt.Sprintf(`for i in $(seq 2000); do printf "$i "; [ $((i %% 100)) = 0 ] && sleep 0.03; echo line; done | tee %s`, written))
	var all strings.Builder
	var cursor *int64
	polls := 0
	wait.Until(t, "the command ends", func() bool {
		running := d.status(t, id).Running
		text, next := d.logs(t, id, cursor)
		if running { // what is behind the last newline comes again
			text = text[:strings.LastIndexByte(text, '\n')+1]
		}
		if got := int64(strings.Count(all.String()+text, "\n")) - 1; got != next {
			t.Fatalf("%d lines have come, the cursor is %d", got+1, next)
		}
		all.WriteString(text)
		cursor = &next
		polls++
		return !running
	})
	if want := read(t, written); all.String() != want {
		t.Errorf("%d bytes came, %d were written", all.Len(), len(want))
	}
	if polls < 3 {
		t.Errorf("the command ended after %d polls: they prove nothing", polls)
	}
}

func TestLogsAreBytes(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.background(t, `printf 'a\0\377\r\nb'`)
	d.ended(t, id)
	if got, _ := d.logs(t, id, nil); got != "a\x00\xff\r\nb" {
		t.Errorf("got %q", got)
	}
}
