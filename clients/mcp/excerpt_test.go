package mcp_test

import (
	"fmt"
	"strings"
	"testing"

	server "sandbox.internal/clients/mcp"
)

func TestExcerpt(t *testing.T) {
	long := numbered(10_000)
	for name, test := range map[string]struct {
		output string
		pieces int // bytes that come at once
	}{
		"nothing":         {"", 1},
		"short":           {"one\ntwo\n", 3},
		"just as much":    {strings.Repeat("x", server.MaxText), 1000},
		"long":            {long, 4096},
		"line by line":    {long, 6},
		"all at once":     {long, len(long)},
		"one line":        {strings.Repeat("y", 100_000), 50_000},
		"not quite UTF-8": {strings.Repeat("\xff", 100_000), 50_000},
	} {
		t.Run(name, func(t *testing.T) {
			got := server.Excerpt(test.output, test.pieces)
			if len(test.output) <= server.MaxText {
				if got != test.output {
					t.Errorf("%d bytes became %d", len(test.output), len(got))
				}
				return
			}
			if len(got) > server.MaxText+200 {
				t.Errorf("%d bytes are shown", len(got))
			}
			head, rest, found := strings.Cut(got, "\n[")
			note, tail, _ := strings.Cut(rest, "]\n")
			var left, line int
			_, err := fmt.Sscanf(note, "%d bytes are left out here; line %d", &left, &line)
			if err != nil || !found {
				t.Fatalf("%v: %.100q", err, note)
			}
			if test.output != long {
				return
			}
			if left != len(long)-len(head)-len(tail) || !strings.HasPrefix(long, head) ||
				!strings.HasSuffix(long, tail) {
				t.Errorf("%d bytes are left out between %d and %d", left, len(head), len(tail))
			}
			if line != strings.Count(head, "\n")-1 {
				t.Errorf("line %d ends %d lines", line, strings.Count(head, "\n"))
			}
		})
	}
}

// numbered is a text of lines that differ.
func numbered(lines int) string {
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "%d\n", i)
	}
	return text.String()
}
