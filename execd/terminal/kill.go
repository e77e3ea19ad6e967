package terminal

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

// kill hangs the terminal up: its program, and what runs in the foreground, which a shell puts into
// a group of its own. What is left of them after killDelay is killed.
func (t *Terminal) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hangUp(hangingUp...)
}

// hangingUp is what asks programs to end: who is stopped would not notice the first signal alone.
var hangingUp = []syscall.Signal{syscall.SIGHUP, syscall.SIGCONT}

// expire hangs the terminal up because its timeout has elapsed. In a frozen sandbox, where no
// process may run, and where the spec says so, it kills at once. A program that has ended by itself
// keeps its exit code.
func (t *Terminal) expire() {
	signals := hangingUp
	if t.abrupt {
		signals = []syscall.Signal{syscall.SIGKILL}
	} else if t.enter != nil {
		if leave, err := t.enter(); err == nil {
			defer leave()
		} else {
			signals = []syscall.Signal{syscall.SIGKILL}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.reaped && !process.HasExited(t.process.Process.Pid) {
		t.timedOut = t.hangUp(signals...)
	}
}

// hangUp signals what kill is for. The caller holds the lock. It reports whether there was
// something to signal.
func (t *Terminal) hangUp(signals ...syscall.Signal) bool {
	if t.reaped || t.killing != nil {
		return false
	}
	t.hungUp = t.foreground()
	for _, signal := range signals {
		if t.hungUp > 0 {
			_ = process.SignalGroup(t.hungUp, signal) // ESRCH: it has just ended
		}
		t.signalGroup(signal)
	}
	t.killing = time.AfterFunc(killDelay, t.killNow)
	return true
}

func (t *Terminal) killNow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed = true
	t.taken.Broadcast()
	if !t.reaped {
		t.signalGroup(syscall.SIGKILL)
	}
	for _, pid := range t.remaining() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// awaitGroup gives what is left of the group of a program that was hung up, and has ended, its time
// to end as well. The program has not been waited for, which keeps the group's number from being
// used again.
func (t *Terminal) awaitGroup() {
	ending := func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.killing != nil && !t.killed
	}
	for pause := firstPause; ending() && process.GroupRuns(t.process.Process.Pid); pause = min(2*pause, lastPause) {
		time.Sleep(pause)
	}
}

// signalGroup signals the program's group. The caller holds the lock, and the program has not been
// waited for.
func (t *Terminal) signalGroup(signal syscall.Signal) {
	_ = process.SignalGroup(t.process.Process.Pid, signal) // ESRCH: no process is left
}

// remaining are the processes of the group that was hung up in the foreground. They can outlive the
// program, and with them their session, which distinguishes them from other processes that reuse
// the group's number.
func (t *Terminal) remaining() []int {
	all, _ := process.List() // without /proc none can be found
	var pids []int
	for _, pid := range all {
		session, err := unix.Getsid(pid)
		if err != nil || session != t.process.Process.Pid {
			continue
		}
		if group, err := unix.Getpgid(pid); err == nil && group == t.hungUp {
			pids = append(pids, pid)
		}
	}
	return pids
}

// foreground is the process group that reads what is typed, or 0.
func (t *Terminal) foreground() (group int) {
	err := t.control(func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if err != nil {
		return 0
	}
	return group
}
