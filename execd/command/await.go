package command

import (
	"errors"
	"os"

	"sandbox.internal/internal/process"
)

// watchExit delivers exited to the run once its process has ended, and leaves it to be waited for.
//
// Where the kernel gives no descriptor of a process (before 5.4, or when a filter of system calls
// forbids it), a goroutine waits, which costs a thread per running command.
func (r *run) watchExit(started *os.Process) {
	if !r.poller.noHandles {
		var watched error
		err := started.WithHandle(func(handle uintptr) { watched = r.poller.watch(int(handle), r, exited) })
		if errors.Join(err, watched) == nil {
			return
		}
	}
	r.deliverExit(started.Pid)
}

// deliverExit has a goroutine wait for the end of the process, and delivers exited then.
func (r *run) deliverExit(pid int) {
	go func() {
		process.AwaitExit(pid)
		r.deliver(exited, false)
	}()
}
