//go:build !windows

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// followSize calls resize with the size of our terminal now and whenever it changes, until the
// function that it returns is called.
func (t *tool) followSize(resize func(rows, cols int)) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	return eachSizeOf(t.terminalSize, changed, func() { signal.Stop(changed) }, resize)
}
