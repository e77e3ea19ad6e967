package command_test

import (
	"runtime"
	"sync"
	"testing"

	"sandbox.internal/execd/command"
)

// TestStatusAndLogEndAtOnce: who sees in the status that a command has ended finds all of its
// output, the last line without a newline included, and who has read the terminal event finds the
// exit code in the status.
func TestStatusAndLogEndAtOnce(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	for range 50 {
		var group sync.WaitGroup
		for range 4 {
			c := start(t, m, command.Spec{Command: "printf x"})
			group.Go(func() {
				for c.Status().Running {
					runtime.Gosched()
				}
				if last := c.Log().Lines(-1).Last; last != 0 {
					t.Errorf("the status is ended, the last complete line %d", last)
				}
			})
			group.Go(func() {
				all(t, c)
				if status := c.Status(); status.Running || status.ExitCode == nil {
					t.Errorf("the stream has ended, the status is %+v", status)
				}
			})
		}
		group.Wait()
	}
}
