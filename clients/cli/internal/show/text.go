package show

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Clean makes a text of the service's or a sandbox's fit into one line of ours: what could move
// the cursor, change colours or turn the direction of writing becomes a question mark, and so
// does what the locale does not have.
func (o Printer) Clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r) || (o.ASCII && r > unicode.MaxASCII):
			return '?'
		}
		return r
	}, text)
}

// Cells is how many columns of a terminal a text takes.
func Cells(text string) int {
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

// Shorten cuts a text to so many columns, with a mark at its end when something is missing.
func (o Printer) Shorten(text string, columns int) string {
	if Cells(text) <= columns {
		return text
	}
	mark := o.Symbol("…", "~")
	room := columns - Cells(mark)
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
	return text + strings.Repeat(" ", max(0, columns-Cells(text)))
}

// Symbol returns the first text, or the second one where the locale only has ASCII.
func (o Printer) Symbol(text, ascii string) string {
	if o.ASCII {
		return ascii
	}
	return text
}
