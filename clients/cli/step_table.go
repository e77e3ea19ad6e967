package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// stepTable prints the steps of a long command as an aligned table, one row when a step
// is over, with notes in between.
type stepTable struct {
	t      *tool
	out    io.Writer
	colour bool
}

// newStepTable colours only what a person reads on a terminal, and not when the person
// set NO_COLOR (no-color.org).
func (t *tool) newStepTable() *stepTable {
	colour := isTerminal(t.Stdout) && t.Env("NO_COLOR") == "" && t.Env("TERM") != "dumb"
	return &stepTable{t: t, out: t.Stdout, colour: colour}
}

// The colours in use, as numbers of SGR sequences.
const (
	red   = 31
	green = 32
	faint = 2
)

func (s *stepTable) paint(sgr int, text string) string {
	if !s.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", sgr, text)
}

func (s *stepTable) line(text string) { _, _ = fmt.Fprintln(s.out, text) }

// note prints something that happens within a step, before the step's own row.
func (s *stepTable) note(text string) {
	for line := range strings.Lines(text) {
		s.line(s.paint(faint, "      "+s.t.Clean(strings.TrimRight(line, "\n"))))
	}
}

func (s *stepTable) passed(name string, took time.Duration, detail string) {
	s.row(s.paint(green, s.t.Symbol("✓", "ok")), name, took, detail)
}

func (s *stepTable) failed(name string, took time.Duration) {
	s.row(s.paint(red, s.t.Symbol("✗", "!!")), name, took, "")
}

func (s *stepTable) row(mark, name string, took time.Duration, detail string) {
	row := fmt.Sprintf("  %s %-9s %s  %s", mark, name,
		s.paint(faint, fmt.Sprintf("%8s", duration(took))), detail)
	s.line(strings.TrimRight(row, " "))
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
