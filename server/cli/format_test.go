package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandbox.internal/gen/execd"
	"sandbox.internal/server/cli"
)

func TestOutputOf(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, event, want string }{
		{"a line", `{"type":"stdout","text":"hello"}`, "hello\n"},
		{"an empty line", `{"type":"stdout","text":"\n"}`, "\n"},
		{"a prompt", `{"type":"stdout","text":"name: ","partial":true}`, "name: "},
		{"partial said to be false", `{"type":"stderr","text":"a","partial":false}`, "a\n"},
		{"bytes that are not text", `{"type":"stdout","text":"\ufffd","raw":"/w=="}`, "\xff\n"},
		{"a piece of such bytes", `{"type":"stdout","text":"\ufffd","raw":"/w==","partial":true}`,
			"\xff"},
		{"spaces stay", `{"type":"stdout","text":" a\r"}`, " a\r\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var event execd.StreamEvent
			if err := json.Unmarshal([]byte(test.event), &event); err != nil {
				t.Fatal(err)
			}
			if got := string(cli.OutputOf(event)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	tests := []struct {
		took time.Duration
		want string
	}{
		{0, "0.0 ms"},
		{1234 * time.Microsecond, "1.2 ms"},
		{9949 * time.Microsecond, "9.9 ms"},
		{9960 * time.Microsecond, "10 ms"},
		{310 * time.Millisecond, "310 ms"},
		{999499 * time.Microsecond, "999 ms"},
		{999500 * time.Microsecond, "1.00 s"},
		{2346 * time.Millisecond, "2.35 s"},
		{83 * time.Second, "83.00 s"},
	}
	for _, test := range tests {
		if got := cli.Duration(test.took); got != test.want {
			t.Errorf("%s: got %q, want %q", test.took, got, test.want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	const plain = "      a note\n" +
		"      of two lines\n" +
		"  ✓ create      3.0 ms  done\n" +
		"  ✗ download   12.00 s\n"
	var out strings.Builder
	cli.Table(&out, false)
	if out.String() != plain {
		t.Errorf("without colour:\n%s\nwant:\n%s", out.String(), plain)
	}

	out.Reset()
	cli.Table(&out, true)
	without := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[2m", "", "\x1b[0m",
		"").Replace(out.String())
	if without == out.String() ||
		strings.TrimRight(without, " \n") != strings.TrimRight(plain, " \n") {
		t.Errorf("colour must change nothing but the colour:\n%q", out.String())
	}
}
