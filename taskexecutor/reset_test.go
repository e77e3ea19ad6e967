package taskexecutor

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

// TestPutBesideAReset: a task that is asked for before a reset does not outlive it.
func TestPutBesideAReset(t *testing.T) {
	l := startLocal(t, t.TempDir())
	l.changing.Lock()
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := l.Put("task", tasks.Task{Command: []string{"true"}})
		if err != nil && !tasks.HasCode(err, tasks.CodeResetting) {
			t.Errorf("put: %v", err)
		}
	})
	wait.Until(t, "the put waits for what goes on", func() bool {
		stacks := make([]byte, 1<<20)
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "(*Executor).Put(") && strings.Contains(stack, "sync.(*Mutex).Lock") {
				return true
			}
		}
		return false
	})
	l.changing.Unlock()
	// It takes the lock before what waits for it can.
	if _, err := l.Reset(); err != nil {
		t.Fatal(err)
	}
	asking.Wait()
	if list, _ := l.List(); len(list.Items) > 0 {
		t.Errorf("after the reset there is %+v", list.Items)
	}
}
