package docker

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
)

// TestLastBytes: the end of many short lines, and of one that is longer than what is kept, takes
// few allocations. One copy for each line took seconds.
func TestLastBytes(t *testing.T) {
	var all bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	all.WriteString(strings.Repeat("x", 5*engine.MaxLogsBytes))
	for i := range 100 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	lines := bytes.SplitAfter(all.Bytes(), []byte("\n"))

	var end string
	allocations := testing.AllocsPerRun(1, func() {
		var last lastBytes
		for _, line := range lines {
			if n, err := last.Write(line); n != len(line) || err != nil {
				t.Fatalf("a write of %d bytes returns %d and %v", len(line), n, err)
			}
		}
		end = string(last.end())
	})
	if want := all.String()[all.Len()-engine.MaxLogsBytes:]; end != want {
		t.Errorf("%d bytes are kept, from %.20q to %q; want %d, from %.20q", len(end), end,
			end[max(0, len(end)-20):], len(want), want)
	}
	if allocations > 100 {
		t.Errorf("%v allocations for %d lines", allocations, len(lines))
	}
	var few lastBytes
	if _, err := few.Write([]byte("one")); err != nil || string(few.end()) != "one" {
		t.Errorf("of one write %q is kept (%v)", few.end(), err)
	}
}
