package cli_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
)

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	rows := [][2]string{{"0a1b2c3d", strings.Repeat("word ", 30)}, {"4e5f6071", "日本語日本語日本語"}}
	for _, limit := range []int{200, 80, 40, 20, 12, 5, 1} {
		table := cli.Columns(limit, false, rows...)
		for line := range strings.Lines(table) {
			if n := cli.Cells(strings.TrimRight(line, "\n")); n > limit {
				t.Errorf("limit %d: a line has %d columns: %q", limit, n, line)
			}
		}
		if limit >= 20 && !strings.Contains(table, "0a1b2c3d") {
			t.Errorf("limit %d: the id is cut:\n%s", limit, table)
		}
	}
	if table := cli.Columns(0, false, rows...); !strings.Contains(table, strings.TrimSpace(rows[0][1])) {
		t.Errorf("without a limit something is cut:\n%s", table)
	}
}

func TestTableIsCleaned(t *testing.T) {
	t.Parallel()
	hostile := "a\x1b[31mb\rc\nd\te\u202ef\u009bg\x00\x7fh"
	table := cli.Columns(0, false, [2]string{"1", hostile})
	if want := "a?[31mb?c d e?f?g??h"; !strings.Contains(table, want) ||
		strings.Count(table, "\n") != 2 {
		t.Errorf("the table is %q, want %q in its second line", table, want)
	}
	if table := cli.Columns(0, true, [2]string{"1", "Größe"}); !strings.Contains(table, "Gr??e") {
		t.Errorf("in the locale C the table is %q", table)
	}
}

func TestEncodedValues(t *testing.T) {
	t.Parallel()
	text, err := cli.EncodeJSON(map[string]string{"b": "\x1b\u009b\x7f<é>", "a": "1"})
	if want := `{"a":"1","b":"\u001b\u009b\u007f<é>"}` + "\n"; err != nil || text != want {
		t.Errorf("JSON %q (%v), want %q", text, err, want)
	}
	text, err = cli.WriteYAML(`{"z":{"list":[1,"1",true,"true",null]},"a":"b: c"}`)
	want := "z:\n  list:\n    - 1\n    - \"1\"\n    - true\n    - \"true\"\n    - null\na: 'b: c'\n"
	if err != nil || text != want {
		t.Errorf("YAML %q (%v), want %q", text, err, want)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text  string
		lines int
		want  string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 5, "a\nb\n"},
		{"a\nb\n", 0, ""}, {"", 3, ""}, {"\n\n\n", 2, "\n\n"}, {"a", 1, "a"},
	} {
		if got := cli.LastLines(test.text, test.lines); got != test.want {
			t.Errorf("the last %d of %q are %q, want %q", test.lines, test.text, got, test.want)
		}
	}
}

func TestDetachKeys(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		typed []string // pieces as they are read
		sent  string
		leave bool
	}{
		{[]string{"ls\n"}, "ls\n", false},
		{[]string{"a\x10\x11b"}, "a", true},
		{[]string{"a\x10", "\x11"}, "a", true},
		{[]string{"\x10a"}, "\x10a", false},
		{[]string{"\x10", "a\x11"}, "\x10a\x11", false},
		{[]string{"\x10\x10\x11"}, "\x10", true},
		{[]string{"\x11\x10"}, "\x11", false},
	} {
		var keys cli.Detacher
		var sent string
		var leave bool
		for _, piece := range test.typed {
			var part string
			part, leave = keys.Filter(piece)
			sent += part
		}
		if sent != test.sent || leave != test.leave {
			t.Errorf("%q: sent %q and left %v, want %q and %v", test.typed, sent, leave, test.sent,
				test.leave)
		}
	}
}

// TestOutcomeOnTerminal: only a timeout that there was has ended a program without an exit code.
func TestOutcomeOnTerminal(t *testing.T) {
	t.Parallel()
	none, some := time.Duration(0), time.Minute
	for name, test := range map[string]struct {
		code    *int
		timeout *time.Duration
		exit    int
		printed string
	}{
		"it succeeds":            {new(0), &none, cli.ExitOK, ""},
		"it fails":               {new(3), &some, 3, ""},
		"its timeout elapses":    {nil, &some, cli.ExitTimeout, "was ended by its timeout"},
		"its exit code is lost":  {nil, &none, cli.ExitService, "exit code is not known\n"},
		"it was started before":  {nil, nil, cli.ExitService, "exit code is not known: a timeout may have ended it\n"},
		"attached, and it fails": {new(3), nil, 3, ""},
	} {
		exit, printed := cli.OutcomeOnTerminal(test.code, test.timeout)
		if exit != test.exit || !strings.Contains(printed, test.printed) || test.printed == "" && printed != "" {
			t.Errorf("%s: exit code %d, %q", name, exit, printed)
		}
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"box:/tmp/a":   {"box", "/tmp/a"},
		"box:rel/a:b":  {"box", "rel/a:b"},
		"./a:b":        {"", "./a:b"},
		"/tmp/a:b":     {"", "/tmp/a:b"},
		"-":            {"", "-"},
		"notes.txt":    {"", "notes.txt"},
		":/tmp":        {"", ":/tmp"},
		"0a1b2c3d:/x ": {"0a1b2c3d", "/x "},
	} {
		if name, path := cli.ParseLocation(text); name != want[0] || path != want[1] {
			t.Errorf("%q is %q and %q, want %q", text, name, path, want)
		}
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	for mode := range uint32(0o1000) {
		digits, err := strconv.Atoi(cli.Digits(mode))
		if got := cli.Permissions(digits); err != nil || got != mode {
			t.Fatalf("%#o becomes %#o, %v", mode, got, err)
		}
	}
	if got := cli.Digits(0o100644); got != "644" {
		t.Errorf("0644 is written %q", got)
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	if got, want := cli.Quote("it's", "$a b", ""), `'it'\''s' '$a b' ''`; got != want {
		t.Errorf("quoted %s, want %s", got, want)
	}
}

func TestWithoutColours(t *testing.T) {
	t.Parallel()
	if got := cli.WithoutColours("\x1b[0;31mError\x1b[0m: x\x1b["); got != "Error: x" {
		t.Errorf("got %q", got)
	}
}

func TestDescribeTransfer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{0, 100 << 20, 0, "a 0% of 100.0 MiB"},
		{50 << 20, 100 << 20, 10 * time.Second, "a 50% of 100.0 MiB  5.0 MiB/s  10s left"},
		{100 << 20, 100 << 20, 10 * time.Second, "a 100% of 100.0 MiB  10.0 MiB/s"},
		{1536, 0, time.Second, "a 1.5 KiB  1.5 KiB/s"},
	} {
		if got := cli.DescribeTransfer("a", test.done, test.total, test.took); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]string{
		0:                         "0.0 ms",
		1234 * time.Microsecond:   "1.2 ms",
		9960 * time.Microsecond:   "10 ms",
		310 * time.Millisecond:    "310 ms",
		999500 * time.Microsecond: "1.00 s",
		83 * time.Second:          "83.00 s",
	} {
		if got := cli.Duration(took); got != want {
			t.Errorf("%s: got %q, want %q", took, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	const plain = "      a note\n      of two lines\n  ✓ create      3.0 ms  done\n  ✗ download   12.00 s\n"
	if got := cli.Table(false, false); got != plain {
		t.Errorf("without colour:\n%s\nwant:\n%s", got, plain)
	}
	colours := cli.Table(true, false)
	if without := cli.WithoutColours(colours); without == colours ||
		strings.TrimRight(without, " \n") != strings.TrimRight(plain, " \n") {
		t.Errorf("colour must change nothing but the colour:\n%q", colours)
	}
	if got := cli.Table(false, true); strings.ContainsFunc(got, func(r rune) bool { return r > 127 }) {
		t.Errorf("in the locale C:\n%s", got)
	}
}

func TestScore(t *testing.T) {
	t.Parallel()
	p50, p95, p99, score, success := cli.Summarize(1000, 2000, 3000, -1)
	// 0.75 × (0.6 × 80 + 0.25 × 70 + 0.15 × 70)
	if p50 != 2000 || p95 != 3000 || p99 != 3000 || success != 0.75 || score != 57 {
		t.Errorf("p50 %g p95 %g p99 %g success %g score %g", p50, p95, p99, success, score)
	}
	if _, _, _, score, success := cli.Summarize(-1, -1); score != 0 || success != 0 {
		t.Errorf("without a success the score is %g", score)
	}
	if _, _, _, score, _ := cli.Summarize(20000); score != 0 {
		t.Errorf("20 s score %g", score)
	}
}
