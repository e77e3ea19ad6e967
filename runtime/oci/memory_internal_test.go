package oci

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestBeginning: the text of a runtime is kept in part, as UTF-8.
func TestBeginning(t *testing.T) {
	long := strings.Repeat("é", 600)
	for text, want := range map[string]string{
		"":                              "",
		"exit code 1":                   "exit code 1",
		"\xff\xfe bytes":                "? bytes",
		strings.Repeat("a", 1<<10):      strings.Repeat("a", 1<<10),
		strings.Repeat("a", 1<<20):      strings.Repeat("a", 1<<10-3) + "...",
		long:                            strings.Repeat("é", 510) + "...",
		strings.Repeat("\xff", 2<<20):   "?",
		strings.Repeat("\xff a", 1<<20): strings.Repeat("? a", 340) + "?...",
	} {
		got := beginning(text, reasonBytes)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("of %.20q %d bytes are kept: %.20q, want %d: %.20q", text, len(got), got, len(want), want)
		}
	}
}
