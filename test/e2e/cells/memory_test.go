package cells_test

import (
	"strings"
	"testing"
)

// TestKernelKilledForMemory: the cell says why its kernel is gone, no command has the same reason
// for it, and cells elsewhere in the sandbox work.
func TestKernelKilledForMemory(t *testing.T) {
	const memory = "640Mi"
	for name, open := range map[string]func(*testing.T) *daemon{
		"direct": func(t *testing.T) *daemon {
			return enterWithin(t, memory, chosenEngine(t), nil, "sleep", "infinity")
		},
		"server": func(t *testing.T) *daemon { return sandboxServerWithin(t, memory) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			python := python()
			id := d.newContext(t, "python")
			d.run(t, id, python.print).good(t)
			end := d.run(t, id, "x = bytearray(2 << 30)").end()
			if end.Reason != "OOM_KILLED" || end.Error == nil || end.Error.Ename != "KernelDied" || !strings.Contains(end.Error.Evalue, "OOM_KILLED") {
				t.Errorf("the cell ended with %s", end.data)
			}
			d.gone(t, id)
			d.run(t, d.newContext(t, "python"), python.print).good(t)

			// A kernel that ends by another SIGKILL has no reason.
			id = d.newContext(t, "python")
			if end := d.run(t, id, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").end(); end.Reason != "" || end.Error == nil || end.Error.Ename != "KernelDied" {
				t.Errorf("the cell of a kernel that killed itself ended with %s", end.data)
			}
		})
	}
}
