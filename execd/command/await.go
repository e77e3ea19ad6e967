package command

import (
	"errors"
	"os"

	"sandbox.internal/execd/process"
)

// watchExit delivers the news to the run once its process has ended, and leaves it to be waited for.
//
// Where the kernel gives no descriptor of a process (before 5.4, or when a filter of system calls forbids it), a goroutine waits, which
// costs a thread per running command.
func (r *run) watchExit(started *os.Process) {
	err := errNoHandle
	if !r.poller.noHandles {
		var watched error
		err = started.WithHandle(func(handle uintptr) { watched = r.poller.watch(int(handle), r, exited) })
		err = errors.Join(err, watched)
	}
	if err != nil {
		go func() {
			process.AwaitExit(started.Pid)
			r.deliver(exited, false)
		}()
	}
}

var errNoHandle = errors.New("descriptors of processes are not used")
