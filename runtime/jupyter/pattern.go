package jupyter

import (
	"regexp"
	"sync"
)

// pattern returns a regular expression that is compiled at its first use: execd starts in every
// sandbox, and many of them never run a cell.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
