package api_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	gen "sandbox.internal/gen/execd"
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
	eventually(t, "the command ends", func() bool { return !d.status(t, id).Running })
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

// TestPollingLosesAndRepeatsNothing follows a command as the document tells clients to, with unfinished lines on the way.
func TestPollingLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	d := start(t)
	written := filepath.Join(t.TempDir(), "written")
	id := d.background(t, fmt.Sprintf(`for i in $(seq 2000); do printf "$i "; [ $((i %% 100)) = 0 ] && sleep 0.03; echo line; done | tee %s`, written))
	var all strings.Builder
	var cursor *int64
	polls := 0
	eventually(t, "the command ends", func() bool {
		running := d.status(t, id).Running
		text, next := d.logs(t, id, cursor)
		if running && text != "" && !strings.HasSuffix(text, "\n") {
			t.Fatalf("a line is cut in two: %q", text[max(0, len(text)-40):])
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
