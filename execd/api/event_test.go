package api_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
)

// texts are what output looks like, from the harmless to the hostile.
var texts = []string{
	"", "plain", `"quoted" \ back`, "tab\tcr\rnl\n", "\x00\x01\x1f\x7f", "ünïcödé 日本 🎉", "\u2028\u2029", "\ufffd",
	"\xff", "half \xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "a\xffb\xfec", "<script>&amp;</script>",
	strings.Repeat("x", 1000) + "\xff",
}

// checkString compares one rendering with what encoding/json reads from it.
func checkString(t interface{ Fatalf(string, ...any) }, text []byte) {
	rendered := api.AppendString([]byte("before"), text)
	rest, ok := bytes.CutPrefix(rendered, []byte("before"))
	if !ok || !utf8.Valid(rest) {
		t.Fatalf("%q is rendered as %q", text, rendered)
	}
	var got string
	if err := json.Unmarshal(rest, &got); err != nil {
		t.Fatalf("%q is rendered as %q: %v", text, rest, err)
	}
	// A []rune replaces exactly one byte at a time, as the rendering does.
	if want := string([]rune(string(text))); got != want {
		t.Fatalf("%q is read back as %q, want %q", text, got, want)
	}
	if bytes.ContainsAny(rest, "\r\n") {
		t.Fatalf("%q is rendered on several lines: %q", text, rest)
	}
}

func TestStringsSurviveJSON(t *testing.T) {
	t.Parallel()
	for _, text := range texts {
		checkString(t, []byte(text))
	}
	// Every byte, at every place among those that are looked at together.
	for b := range 256 {
		for place := range 20 {
			text := bytes.Repeat([]byte{'x'}, 20)
			text[place] = byte(b)
			checkString(t, text)
			text[19-place] = byte(b)
			checkString(t, text)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 8),
			rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
		)).Draw(t, "pieces")
		checkString(t, bytes.Join(pieces, nil))
	})
}

func FuzzString(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkString(t, text) })
}

// TestOutputIsRebuilt takes arbitrary output through an event and back, the way a client does it.
func TestOutputIsRebuilt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := bytes.ReplaceAll(rapid.SliceOf(rapid.Byte()).Draw(t, "text"), []byte("\n"), nil)
		partial := rapid.Bool().Draw(t, "partial") && len(text) > 0 // there are no empty fragments
		data := api.AppendEvent(nil, eventlog.Event{ID: 1, Type: eventlog.TypeStdout, Time: 5, Text: text, Partial: partial}, api.AppendExit)
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		want := bytes.Clone(text)
		if !partial {
			want = append(want, '\n')
		}
		if got := e.bytes(); !bytes.Equal(got, want) || e.Type != "stdout" || e.Timestamp != 5 {
			t.Fatalf("%s stands for %q, want %q", data, got, want)
		}
		if e.Text == "" {
			t.Fatalf("%s has no text: clients that skip empty texts would lose it", data)
		}
	})
}

func TestTerminalEvents(t *testing.T) {
	t.Parallel()
	code := func(n int) *int { return &n }
	tests := []struct {
		name string
		exit command.Exit
		want string
	}{
		{"complete", command.Exit{Code: code(0), Duration: 4 * time.Millisecond},
			`{"type":"execution_complete","timestamp":7,"execution_time":4,"exit_code":0}`},
		{"failed", command.Exit{Code: code(2), Reason: `it "failed"`, Duration: time.Second},
			`{"type":"error","timestamp":7,"execution_time":1000,"exit_code":2,"error":{"ename":"CommandExecError","evalue":"2","traceback":["it \"failed\""]}}`},
		{"timed out", command.Exit{TimedOut: true, Reason: "too slow"},
			`{"type":"error","timestamp":7,"execution_time":0,"exit_code":null,"error":{"ename":"CommandTimeoutError","evalue":"the command ran into its timeout","traceback":["too slow"]}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			detail, err := json.Marshal(test.exit)
			if err != nil {
				t.Fatal(err)
			}
			event := eventlog.Event{ID: 3, Type: test.exit.Type(), Time: 7, Text: detail}
			if got := string(api.AppendEvent(nil, event, api.AppendExit)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	if got, want := string(api.AppendPing(nil, 9)), `{"type":"ping","timestamp":9,"text":"pong"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOutputCostsNoAllocation(t *testing.T) {
	buffer := make([]byte, 0, 64<<10)
	for _, text := range texts {
		event := eventlog.Event{ID: 1, Type: eventlog.TypeStdout, Time: 1767366245003, Text: []byte(text), Partial: true}
		allocations := testing.AllocsPerRun(100, func() { buffer = api.AppendEvent(buffer[:0], event, api.AppendExit) })
		if allocations != 0 {
			t.Errorf("an event with %.20q costs %v allocations", text, allocations)
		}
	}
}

func BenchmarkEvent(b *testing.B) {
	event := eventlog.Event{ID: 1, Type: eventlog.TypeStdout, Time: 1767366245003, Text: []byte("300000: a line as commands print them")}
	buffer := make([]byte, 0, 4<<10)
	for b.Loop() {
		buffer = api.AppendEvent(buffer[:0], event, api.AppendExit)
	}
	b.SetBytes(int64(len(buffer)))
}
