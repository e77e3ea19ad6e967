package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// report prints the steps of a long command as an aligned table, one row when a step
// is over, with notes in between.
type report struct {
	t      *tool
	out    io.Writer
	colour bool
}

// newReport colours only what a person reads on a terminal, and not when the person
// set NO_COLOR (no-color.org).
func (t *tool) newReport() *report {
	colour := isTerminal(t.Stdout) && t.Env("NO_COLOR") == "" && t.Env("TERM") != "dumb"
	return &report{t: t, out: t.Stdout, colour: colour}
}

// The colours in use, as numbers of SGR sequences.
const (
	red   = 31
	green = 32
	faint = 2
)

func (r *report) paint(sgr int, text string) string {
	if !r.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", sgr, text)
}

func (r *report) line(text string) { _, _ = fmt.Fprintln(r.out, text) }

// note prints something that happens within a step, before the step's own row.
func (r *report) note(text string) {
	for line := range strings.Lines(text) {
		r.line(r.paint(faint, "      "+r.t.clean(strings.TrimRight(line, "\n"))))
	}
}

func (r *report) passed(name string, took time.Duration, detail string) {
	r.row(r.paint(green, r.t.symbol("✓", "ok")), name, took, detail)
}

func (r *report) failed(name string, took time.Duration) {
	r.row(r.paint(red, r.t.symbol("✗", "!!")), name, took, "")
}

func (r *report) row(mark, name string, took time.Duration, detail string) {
	row := fmt.Sprintf("  %s %-9s %s  %s", mark, name,
		r.paint(faint, fmt.Sprintf("%8s", duration(took))), detail)
	r.line(strings.TrimRight(row, " "))
}

// duration writes a time with about three digits, so that a column of them can be
// compared at a glance.
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond-50*time.Microsecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second-500*time.Microsecond:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
