package mcp

import "fmt"

// MaxText is maxText.
const MaxText = maxText

// Excerpt shows an output that comes in pieces of so many bytes.
func Excerpt(output string, pieces int) string {
	e := &excerpt{}
	for len(output) > 0 {
		n := min(pieces, len(output))
		e.add([]byte(output[:n]))
		output = output[n:]
	}
	return e.text(func(line int64) string { return fmt.Sprintf("line %d", line) })
}
