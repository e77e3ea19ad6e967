// Package thread runs functions on operating system threads of their own, for what a thread cannot
// undo: it has another namespace, or is in another control group.
package thread

import (
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Run calls a function on a thread that ends afterwards, whatever the function has made of it. It
// is never the first thread of the process, which cannot end, and by which /proc/PID describes the
// process. The function must start no goroutines that need what it has made.
//
// Run returns when the thread is gone: as long as it is in a control group of version 1, this
// process is listed there, and is killed by what kills the processes of that group.
func Run(call func()) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		thread := unix.Gettid()
		if thread != os.Getpid() {
			call()
		} else {
			// While the first thread is locked here, another goroutine gets another one.
			defer runtime.UnlockOSThread()
			Run(call)
			thread = 0
		}
		done <- thread
	}()
	if thread := <-done; thread != 0 {
		await(thread)
	}
}

// await returns when a thread that is about to end is gone.
func await(thread int) {
	const patience = 5 * time.Second
	directory := "/proc/self/task/" + strconv.Itoa(thread)
	for deadline, pause := time.Now().Add(patience), 20*time.Microsecond; time.Now().Before(deadline); pause = min(2*pause, time.Millisecond) {
		if unix.Access(directory, unix.F_OK) != nil {
			return
		}
		Sleep(pause) // nothing reports it
	}
}

// Sleep is time.Sleep without its least time: a millisecond while the program has nothing else to
// do, as that is what epoll_wait counts in. It blocks a thread.
func Sleep(pause time.Duration) {
	left := unix.NsecToTimespec(pause.Nanoseconds())
	_ = unix.Nanosleep(&left, nil) // a signal ends it early
}
