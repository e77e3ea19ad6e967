package keeper

import (
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unknownExits bounds how many ends of processes are kept that no one has asked for yet.
const unknownExits = 1024

// exitEvent is the end of a child.
type exitEvent struct {
	pid    int
	status unix.WaitStatus
	at     time.Time
	number uint64 // counts the ends of unknown children
}

// reaper waits for all children of this process: those that it has started, and those that became
// its children because their parent ended. Nothing else may wait for a child.
type reaper struct {
	// mu is held while a child is started, so that its end is not seen before it is known.
	mu      sync.Mutex
	ended   map[int]func(exitEvent)
	users   int         // launches that may still ask for an end
	unknown []exitEvent // ends that no one has asked for; kept for these users
	number  uint64      // of the last unknown end

	own int // descriptors below this number are those that the process has as long as it runs
}

// newReaper must be called once Go's own poller has its descriptors.
func newReaper() (*reaper, error) {
	next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	unix.Close(next)
	return &reaper{ended: map[int]func(exitEvent){}, own: next}, nil
}

// run reaps until the process ends.
func (r *reaper) run() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		for _, call := range r.reap() {
			call()
		}
		<-children
	}
}

// reap waits for every child that has ended, and returns the calls that report it.
func (r *reaper) reap() (calls []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 { // no child at all, or none that has ended
			return calls
		}
		if status.Stopped() { // a child that is traced has not ended, see userNamespace
			continue
		}
		end := exitEvent{pid: pid, status: status, at: time.Now()}
		if ended, ok := r.ended[pid]; ok {
			delete(r.ended, pid)
			calls = append(calls, func() { ended(end) })
			continue
		}
		if r.users == 0 {
			continue
		}
		r.number++
		end.number = r.number
		if len(r.unknown) == unknownExits {
			r.unknown = r.unknown[1:]
		}
		r.unknown = append(r.unknown, end)
	}
}

// use makes the reaper keep ends of processes that are not known yet, until release. since is for
// watch.
func (r *reaper) use() (since uint64, release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users++
	return r.number, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.users--; r.users == 0 {
			r.unknown = nil
		}
	}
}

// start starts a child, and returns a channel that gets its end.
func (r *reaper) start(program string, argv []string, attributes *syscall.ProcAttr) (pid int, done <-chan exitEvent, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err = syscall.ForkExec(program, argv, attributes)
	if err != nil {
		return 0, nil, err
	}
	ends := make(chan exitEvent, 1)
	r.ended[pid] = func(end exitEvent) { ends <- end }
	return pid, ends, nil
}

// watch calls ended once, when the child pid has ended: at once when it already has, after since.
func (r *reaper) watch(pid int, since uint64, ended func(exitEvent)) {
	r.mu.Lock()
	for _, end := range r.unknown {
		if end.pid == pid && end.number > since {
			r.mu.Unlock()
			ended(end)
			return
		}
	}
	r.ended[pid] = ended
	r.mu.Unlock()
}

// hasEnded reports whether the child pid has ended after since, and nothing watches it.
func (r *reaper) hasEnded(pid int, since uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.unknown, func(end exitEvent) bool { return end.pid == pid && end.number > since })
}

// kill sends SIGKILL to a child that was started or is watched, unless it was reaped.
func (r *reaper) kill(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.ended[pid]; ok {
		_ = unix.Kill(pid, unix.SIGKILL) // it is a child, and so has not gone
	}
}
