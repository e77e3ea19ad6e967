package cli

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// clean makes a text of the service's or a sandbox's fit into one line of ours: what could move
// the cursor, change colours or turn the direction of writing becomes a question mark, and so
// does what the locale does not have.
func (t *tool) clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r) || (t.ascii && r > unicode.MaxASCII):
			return '?'
		}
		return r
	}, text)
}

// cells is how many columns of a terminal a text takes.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.Is(unicode.Mn, r) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// shorten cuts a text to so many columns, with a mark at its end when something is missing.
func (t *tool) shorten(text string, columns int) string {
	if cells(text) <= columns {
		return text
	}
	mark := t.symbol("…", "~")
	room := columns - cells(mark)
	if room < 0 {
		return ""
	}
	var short strings.Builder
	for _, r := range text {
		if room -= runeCells(r); room < 0 {
			break
		}
		short.WriteRune(r)
	}
	return short.String() + mark
}

// pad fills a text with spaces up to so many columns.
func pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(0, columns-cells(text)))
}

// sentence is a status for people: its message, or its reason when it has none.
func sentence(message, reason string) string {
	if message = strings.TrimSpace(message); message != "" {
		return message
	}
	if reason != "" {
		return reason
	}
	return "no reason given"
}
