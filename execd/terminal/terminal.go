package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/internal/process"
)

const (
	// killDelay is how long a terminal's processes have to end after SIGHUP before they are killed.
	killDelay = 2 * time.Second
	// What has been written when drainTime is over is read all the same: it is at most restLimit
	// bytes, which the kernel brings in pieces, with pauses of at most restPause in between.
	restLimit = 64 << 10
	restPause = 20 * time.Millisecond
	restWaits = 16
	// A process group whose leader has ended is looked at after the first pause, and then after
	// pauses that double up to the last.
	firstPause = 5 * time.Millisecond
	lastPause  = 160 * time.Millisecond
)

// drainTime bounds the wait for the last output once the program has ended. Only a process that
// outlives it and keeps the terminal open makes us wait that long; else the kernel reports the end.
var drainTime = 100 * time.Millisecond

// Terminal is a program on a pseudo-terminal, or what is left of one that has ended.
type Terminal struct {
	id        string
	command   []string
	createdAt time.Time
	timeout   time.Duration // 0 is none
	abrupt    bool          // see Spec
	enter     func() (leave func(), err error)
	holds     *holds.Registry
	process   *exec.Cmd
	master    *os.File
	typing    chan struct{} // held by whoever writes input
	over      chan struct{} // closed when the terminal has ended

	mu        sync.Mutex
	history   history
	changed   chan struct{} // closed and replaced when there is more to see
	viewers   int
	hold      *holds.Hold // nil without viewers
	followers []*Viewer   // those that miss nothing
	taken     sync.Cond   // signals that room may have grown
	rows      uint16
	cols      uint16
	reaped    bool        // the program is no more: its process id must not be signalled
	killing   *time.Timer // set once the terminal was asked to end
	killed    bool        // what had not ended was sent SIGKILL
	hungUp    int         // the group that was in the foreground then
	timedOut  bool        // the timeout ended it
	ended     bool
	exitCode  *int
	wait      syscall.WaitStatus // of wait(2), valid once ended
}

// Status is what is known of a terminal.
type Status struct {
	ID       string
	Command  []string // the program and its arguments
	Running  bool
	TimedOut bool // the timeout ended it
	// Wait is the status of wait(2) of the program, also after a timeout; 0 while it runs.
	Wait      syscall.WaitStatus
	ExitCode  *int // nil while it runs and after a timeout; 128 and the signal's number for a program that a signal ended
	Rows      uint16
	Cols      uint16
	Viewers   int
	CreatedAt time.Time
}

// ID returns the terminal's id.
func (t *Terminal) ID() string { return t.id }

// PID returns the number of the terminal's program, which another process may have once the
// terminal has ended.
func (t *Terminal) PID() int { return t.process.Process.Pid }

// Done returns a channel that is closed when the terminal has ended.
func (t *Terminal) Done() <-chan struct{} { return t.over }

// Status returns what is known of the terminal now.
func (t *Terminal) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Status{
		ID:        t.id,
		TimedOut:  t.ended && t.timedOut,
		Wait:      t.wait,
		Command:   slices.Clone(t.command),
		Running:   !t.ended,
		ExitCode:  t.exitCode,
		Rows:      t.rows,
		Cols:      t.cols,
		Viewers:   t.viewers,
		CreatedAt: t.createdAt,
	}
}

// Resize changes the terminal's size; the kernel signals its programs. A terminal that has ended is
// left as it is. It returns an [invalid.Error] for a size of nothing.
func (t *Terminal) Resize(rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return invalid.Errorf("rows and cols: must be at least 1")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	err := t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	t.rows, t.cols = rows, cols
	return nil
}

// Signal sends a signal to the terminal's program alone, and reports whether it was there to
// receive it.
func (t *Terminal) Signal(signal syscall.Signal) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid := t.process.Process.Pid
	return !t.reaped && !process.HasExited(pid) && unix.Kill(pid, signal) == nil
}

// SignalForeground sends a signal to the processes that read what is typed, or to the program's
// group where no process does.
func (t *Terminal) SignalForeground(signal syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reaped {
		return
	}
	if group := t.foreground(); group > 0 {
		_ = process.SignalGroup(group, signal) // ESRCH: it has just ended
		return
	}
	t.signalGroup(signal)
}

// Type gives the terminal input, as if it were typed, and waits until the kernel has taken all of
// it: a program that does not read makes it wait until ctx ends. The input of concurrent callers is
// not interleaved. Input for a terminal that has ended is thrown away.
func (t *Terminal) Type(ctx context.Context, input []byte) error {
	select {
	case t.typing <- struct{}{}:
	case <-t.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.typing }()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = t.master.SetWriteDeadline(time.Unix(1, 0)) // fails on a terminal that has ended, where no write waits
	})
	_, err := t.master.Write(input)
	if !stop() {
		<-interrupted
		_ = t.master.SetWriteDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.Cause(ctx)
	}
	return nil // any other error means that there is no reader
}

// control calls f with the terminal's descriptor. os.File.Fd would make it a blocking one.
func (t *Terminal) control(f func(fd int) error) error {
	connection, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := connection.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// run sees the terminal through to its end.
func (t *Terminal) run() {
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		t.pump()
	}()
	if t.timeout > 0 {
		defer time.AfterFunc(t.timeout, t.expire).Stop()
	}
	process.AwaitExit(t.process.Process.Pid)
	t.awaitGroup()
	t.mu.Lock()
	t.reaped = true
	if t.killing != nil {
		// What is left of its group; the ended leader still keeps the number from being used again.
		t.signalGroup(syscall.SIGKILL)
	}
	_ = t.process.Wait() // the error is only an exit code other than 0
	t.mu.Unlock()
	_ = t.master.SetReadDeadline(time.Now().Add(drainTime))
	<-pumped

	t.mu.Lock()
	defer t.mu.Unlock()
	t.master.Close() // hangs up whoever still uses the terminal
	t.ended = true
	if state := t.process.ProcessState; state != nil { // it was waited for elsewhere otherwise, which loses the code
		t.wait = state.Sys().(syscall.WaitStatus)
		if !t.timedOut {
			t.exitCode = new(process.ExitCode(t.wait))
		}
	}
	close(t.changed)
	close(t.over)
}

// pump moves the program's output into the history until the terminal's other side is closed.
func (t *Terminal) pump() {
	buffer := make([]byte, chunkSize)
	for {
		n, err := t.master.Read(buffer)
		t.show(buffer[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// This process may not have run for all of drainTime, and os.File reads nothing after a
			// deadline.
			_ = t.control(func(fd int) error { return t.pumpRest(fd, buffer) })
		}
		if err != nil {
			return
		}
	}
}

// pumpRest moves into the history what has been written already. Its error ends it and means
// nothing else.
func (t *Terminal) pumpRest(fd int, buffer []byte) error {
	for taken, waits := 0, 0; taken < restLimit; {
		n, err := unix.Read(fd, buffer)
		switch {
		case n > 0:
			t.show(buffer[:n])
			taken += n
		case err == unix.EAGAIN && waits < restWaits:
			// A worker of the kernel moves output from the program's side to this one, a few KiB at
			// a time.
			waits++
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(restPause.Milliseconds()))
			if ready == 0 {
				return err
			}
		case err != unix.EINTR:
			return err
		}
	}
	return nil
}

// show adds output to the history.
func (t *Terminal) show(output []byte) {
	if len(output) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.room() < int64(len(output)) { // which is less than the limit of the history
		t.taken.Wait()
	}
	t.history.write(output)
	close(t.changed)
	t.changed = make(chan struct{})
}
