package process

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OnOneProcessor calls do while the threads of this process are kept on the processor that it is
// called on. Threads that wait for one another are faster so: to wake one on another processor
// takes an interrupt there, some 50 µs on a virtual machine. Where threads cannot be kept on a
// processor do is called all the same.
func OnOneProcessor(do func()) {
	defer keepOnProcessor()()
	do()
}

// keepOnProcessor keeps every thread on one processor, and returns what gives them back those that
// they had.
func keepOnProcessor() (release func()) {
	threads, err := os.Open("/proc/self/task") // until the release, which no missing descriptor may prevent
	if err != nil {
		return func() {}
	}
	var one unix.CPUSet
	var cpu uint32
	had, err := ownProcessors()
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	if err != nil || errno != 0 {
		threads.Close()
		return func() {}
	}
	one.Set(int(cpu))
	keepThreads(threads, &one)
	return func() {
		defer threads.Close()
		// A thread that another one starts has that one's processors: those that came meanwhile are
		// seen by the second look.
		for range 2 {
			keepThreads(threads, &had)
		}
	}
}

// ownProcessors returns the set that gives this thread the processors that it has: every processor
// there can be, unless something else than its control group has taken some from it. A thread that
// was given exactly those of its group would not get those that the group gets later.
func ownProcessors() (had unix.CPUSet, err error) {
	// Both are asked of the thread that runs this, in whose place another one may run the rest.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &had); err != nil {
		return had, err
	}
	var every, now unix.CPUSet
	every.Fill()
	if err := unix.SchedSetaffinity(0, &every); err != nil {
		return had, err
	}
	if err := unix.SchedGetaffinity(0, &now); err != nil || now != had {
		return had, errors.Join(err, unix.SchedSetaffinity(0, &had))
	}
	return every, nil
}

// keepThreads sets the processors of each of these threads. An error is that of a thread that has
// ended.
func keepThreads(threads *os.File, set *unix.CPUSet) {
	if _, err := threads.Seek(0, 0); err != nil {
		return
	}
	names, _ := threads.Readdirnames(-1)
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			_ = unix.SchedSetaffinity(id, set)
		}
	}
}
