package cli

import (
	"bytes"
	"context"
	"time"

	"sandbox.internal/clients/cli/internal/show"
)

// Columns prints a table of two columns of a terminal that is limit wide: an id, which is shown
// whole, and a text, which is not.
func Columns(limit int, ascii bool, rows ...[2]string) string {
	var out bytes.Buffer
	o := show.Printer{ASCII: ascii}
	columns := []show.Column[[2]string]{
		{Title: "ID", Value: func(r [2]string) string { return r[0] }},
		{Title: "TEXT", Value: func(r [2]string) string { return r[1] }, Least: 6},
		{Title: "LAST", Value: func([2]string) string { return "last" }},
	}
	_ = show.WriteTable(o, &out, columns, rows, limit) // a buffer takes everything
	return out.String()
}

// Cells is cells.
func Cells(text string) int { return show.Cells(text) }

// EncodeJSON is encodeJSON.
func EncodeJSON(value any) (string, error) {
	text, err := show.EncodeJSON(value, "")
	return string(text), err
}

// WriteYAML is writeYAML.
func WriteYAML(text string) (string, error) {
	var out bytes.Buffer
	err := show.WriteYAML(&out, []byte(text))
	return out.String(), err
}

// LastLines is lastLines.
func LastLines(text string, lines int) string { return string(lastLines([]byte(text), lines)) }

// Detacher is detacher.
type Detacher struct{ keys detacher }

// Filter is detacher.filter.
func (d *Detacher) Filter(typed string) (send string, leave bool) {
	sent, leave := d.keys.filter([]byte(typed))
	return string(sent), leave
}

// OutcomeOnTerminal is the exit code, and what is printed, when a program on a terminal has ended
// with a code, nil for none. timeout is nil for a program that was started before.
func OutcomeOnTerminal(code *int, timeout *time.Duration) (exit int, printed string) {
	var out bytes.Buffer
	t := &tool{Program: Program{Stderr: &out}}
	var started *program
	if timeout != nil {
		started = &program{timeout: *timeout}
	}
	exit = t.exit(context.Background(), shellCommand(t), t.outcome(code, started))
	return exit, out.String()
}

// ParseLocation is parseLocation.
func ParseLocation(text string) (sandbox, path string) {
	p := parseLocation(text)
	return p.sandbox, p.path
}

// Digits and Permissions are digits and permissions.
func Digits(mode uint32) string { return digits(mode) }

func Permissions(digits int) uint32 { return permissions(digits) }

// Quote is quote.
func Quote(words ...string) string { return quote(words) }

// WithoutColours is withoutColours.
func WithoutColours(text string) string { return withoutColours(text) }

// Duration is duration, and DescribeTransfer is describeTransfer.
func Duration(d time.Duration) string { return duration(d) }

func DescribeTransfer(what string, done, total int64, took time.Duration) string {
	return describeTransfer(what, done, total, took)
}

// Summarize returns percentiles, score and success rate of times in milliseconds; a negative one
// is a failure.
func Summarize(ms ...float64) (p50, p95, p99, score, success float64) {
	took := make([]time.Duration, len(ms))
	failures := make([]error, len(ms))
	for i, m := range ms {
		if took[i] = time.Duration(m * float64(time.Millisecond)); m < 0 {
			failures[i] = errInterrupted
		}
	}
	r := summarize(modeBurst, took, failures)
	return r.P50, r.P95, r.P99, r.Score, r.SuccessRate
}

// Table prints two rows and a note as a stepTable does.
func Table(colour, ascii bool) string {
	var out bytes.Buffer
	r := &stepTable{t: &tool{Printer: show.Printer{ASCII: ascii}}, out: &out, colour: colour}
	r.note("a note\nof two lines\n")
	r.passed("create", 3*time.Millisecond, "done")
	r.failed("download", 12*time.Second)
	return out.String()
}

// MemorySize is memorySize.
func MemorySize(text string) (string, error) { return memorySize(text) }
