package taskexecutor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// The hidden subcommands of the program, and the exit codes of a shim.
const (
	// ShimCommand is the first argument of a shim's command line.
	ShimCommand = "shim"
	// EnterCommand is the first argument of what becomes the task's process.
	EnterCommand = "enter"

	shimDone   = 0  // the task has ended, or another shim has it
	shimBroken = 1  // it could not do its work; standard error has the reason
	shimNoMain = 75 // nothing was started, because there is no main container; EX_TEMPFAIL
)

// The signals by which the executor talks to a shim.
const (
	signalEnd  = unix.SIGTERM // end the task, with its grace
	signalKill = unix.SIGUSR1 // end the task at once
)

// notifySocket is where shims report to the executor that something has changed. A report may be
// lost: the files count.
const notifySocket = "notify.sock"

// shimArguments returns the command line of a shim, without the program.
func shimArguments(f directory, marker string) []string {
	return []string{ShimCommand, "--directory", string(f), "--main-marker", marker}
}

// Shim is the process between the executor and a task's process: the parent that waits for it. It
// outlives the executor, and makes the task's end as sure to be known as to happen: the task dies
// with it. It returns the exit code.
//
// It waits for all children of the process and takes over its signals: nothing else may run in it.
func Shim(args []string) int {
	// The task's process gets SIGKILL when the thread that made it ends; this one lasts as long as
	// the process.
	runtime.LockOSThread()
	flags := flag.NewFlagSet(ShimCommand, flag.ContinueOnError)
	dir := flags.String("directory", "", "directory of the task's records")
	marker := flags.String("main-marker", tasks.MainMarker, "variable of the main container")
	if err := flags.Parse(args); err != nil {
		return shimBroken
	}
	s := &shim{directory: directory(*dir), marker: *marker, signals: make(chan os.Signal, 16), children: make(chan os.Signal, 1)}
	signal.Notify(s.signals, signalEnd, signalKill)
	signal.Notify(s.children, unix.SIGCHLD)
	// A shim ends with its task alone, not when the reader of the container's log goes away.
	// Ignored, these would be ignored in the task, too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	err := s.run()
	switch {
	case errors.Is(err, errNoMain):
		return shimNoMain
	case err != nil:
		s.complain(err)
		return shimBroken
	}
	return shimDone
}

type shim struct {
	directory directory
	marker    string
	task      tasks.Task
	signals   chan os.Signal
	children  chan os.Signal // one element stands for any number of children that ended
	pid       int            // of the task's process, not waited for yet
	cause     string         // why the task is being ended; a reason of a status, empty while it is not
	killed    bool           // signalKill has come
	grace     <-chan time.Time
}

func (s *shim) run() error {
	lock, locked, err := s.directory.lock()
	if err != nil || !locked {
		return err
	}
	// Not closed: the lock is held until the process has ended, because what waits for the one
	// waits for the other.
	defer runtime.KeepAlive(lock)
	snapshot, err := s.directory.load()
	if err != nil || snapshot.started != nil || snapshot.end != nil || snapshot.deleted {
		return err
	}
	record, err := s.directory.task()
	if err != nil {
		return err
	}
	s.task = record.Task
	main, marked, err := findMain(s.marker)
	if err != nil {
		return err
	}
	mainFile, err := main.Open()
	if err != nil {
		return errors.Join(errNoMain, err)
	}
	defer mainFile.Close()
	// Orphans of the task come here and not to another process, so that nothing of it is ever lost
	// sight of.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a reaper: %w", err)
	}
	own, err := process.Identify(os.Getpid())
	if err != nil {
		return err
	}
	select {
	case <-s.signals:
		return nil // nothing was started yet
	default:
	}
	if err := write(string(s.directory), startedFile, startedRecord{Shim: own, At: time.Now().UTC()}); err != nil {
		return err
	}
	end := s.superviseProcess(main, marked, process.Ended(mainFile))
	s.sweep()
	end.At = time.Now().UTC()
	if err := s.recordEnd(end); err != nil {
		return err
	}
	s.notify()
	return nil
}

// recordEnd tries until the end is recorded, which nothing else knows, or is not wanted any more.
func (s *shim) recordEnd(end endRecord) error {
	err := write(string(s.directory), endFile, end)
	if err != nil {
		s.complain(err)
	}
	for err != nil && !s.killed && !errors.Is(err, fs.ErrNotExist) { // the directory
		select {
		case sig := <-s.signals:
			s.killed = sig == signalKill
		case <-retryAfter(err):
			err = write(string(s.directory), endFile, end)
		}
	}
	return err
}

func (s *shim) complain(err error) {
	fmt.Fprintf(os.Stderr, "task-executor: shim of task %s: %v\n", s.directory.name(), err)
}

// superviseProcess runs the task's process to its end.
func (s *shim) superviseProcess(main, marked process.ID, mainEnded <-chan struct{}) endRecord {
	entered, err := s.enter(main, marked)
	if err != nil {
		return endRecord{Reason: tasks.ReasonStartFailed, Message: err.Error()}
	}
	var timeout, unrecorded <-chan time.Time
	var began time.Time
	failure := ""
	for {
		select {
		case failure = <-entered:
			entered = nil
			if failure == "" {
				began, timeout = time.Now().UTC(), s.timeout()
				err := s.recordRunning(began)
				if err != nil {
					s.complain(err)
				}
				unrecorded = retryAfter(err)
			}
		case <-unrecorded:
			unrecorded = retryAfter(s.recordRunning(began))
		case sig := <-s.signals:
			if sig == signalKill {
				s.killed = true
				s.end(tasks.ReasonStopped, 0)
			} else {
				s.end(tasks.ReasonStopped, s.task.Grace())
			}
		case <-mainEnded:
			mainEnded = nil
			s.end(tasks.ReasonMainEnded, 0)
		case <-timeout:
			timeout = nil
			s.end(tasks.ReasonTimedOut, s.task.Grace())
		case <-s.grace:
			s.grace = nil
			s.kill()
		case <-s.children:
			status, ended := s.reap()
			if !ended {
				continue
			}
			if entered != nil {
				failure = <-entered // its end of the pipe is closed
			}
			return s.verdict(status, failure)
		}
	}
}

// enter starts the process that becomes the task's. The channel says once why it could not, or
// nothing.
func (s *shim) enter(main, marked process.ID) (<-chan string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	args := []string{exe, EnterCommand, string(s.directory)}
	for _, id := range []process.ID{main, marked} {
		args = append(args, strconv.Itoa(id.PID), strconv.FormatUint(id.Start, 10))
	}
	s.pid, err = syscall.ForkExec(exe, args, &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{null.Fd(), 1, 2, writer.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	writer.Close()
	if err != nil {
		reader.Close()
		return nil, err
	}
	said := make(chan string, 1)
	go func() {
		defer reader.Close()
		message, err := io.ReadAll(io.LimitReader(reader, 4096))
		if err != nil {
			message = []byte(err.Error())
		}
		said <- string(message)
	}()
	return said, nil
}

// recordRunning writes down that the process runs since it began.
func (s *shim) recordRunning(began time.Time) error {
	// A process that has ended meanwhile is not waited for yet, so it can still be named.
	p, err := process.Identify(s.pid)
	if err == nil {
		err = write(string(s.directory), runningFile, runningRecord{Process: p, At: began})
	}
	if err == nil {
		s.notify()
	}
	return err
}

// timeout is when a process that has just begun has run for too long.
func (s *shim) timeout() <-chan time.Time {
	if timeout := s.task.Timeout(); timeout > 0 {
		return time.After(timeout)
	}
	return nil
}

// end begins to end the task. A second reason changes nothing but the grace, which never becomes
// longer: without any it is killed at once.
func (s *shim) end(cause string, grace time.Duration) {
	if process.HasExited(s.pid) {
		return // by itself
	}
	if s.cause == "" {
		s.cause = cause
		if grace > 0 {
			s.signal(unix.SIGTERM)
			s.signal(unix.SIGCONT) // what is stopped could not react
			s.grace = time.After(grace)
			return
		}
	}
	if grace == 0 {
		s.kill()
	}
}

func (s *shim) kill() { s.signal(unix.SIGKILL) }

// signal sends to the group of the task's process, which has not been waited for, so that the
// number is still its own. Before the process leads a group of its own, the signal goes to it
// alone.
func (s *shim) signal(sig unix.Signal) {
	if process.SignalGroup(s.pid, sig) != nil {
		_ = unix.Kill(s.pid, sig)
	}
}

// reap waits for all children that have ended, and reports whether the task's process was among
// them.
func (s *shim) reap() (status syscall.WaitStatus, ended bool) {
	process.Reap(func(pid int, one syscall.WaitStatus) {
		if pid == s.pid {
			status, ended = one, true
		}
	})
	return status, ended
}

// sweep ends what the task's process has left behind, as in a container that ends with its first
// process. Only children of ours are killed, whose numbers are not reused before we wait for them;
// the children of a killed one become ours.
func (s *shim) sweep() {
	for {
		found, err := children(os.Getpid())
		if err != nil {
			s.complain(fmt.Errorf("look for what is left: %w", err))
		}
		for _, pid := range found {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for {
			_, err = unix.Wait4(-1, nil, 0, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			return // ECHILD: there is none
		}
	}
}

// verdict says how the task has ended.
func (s *shim) verdict(status syscall.WaitStatus, failure string) endRecord {
	code, how := process.ExitCode(status), fmt.Sprintf("exit code %d", status.ExitStatus())
	if status.Signaled() {
		how = "ended by " + unix.SignalName(status.Signal())
	}
	switch {
	case s.cause == tasks.ReasonTimedOut:
		return endRecord{ExitCode: &code, Reason: s.cause, Message: fmt.Sprintf("the task ran longer than its %s: %s", s.task.Timeout(), how)}
	case s.cause == tasks.ReasonMainEnded:
		return endRecord{ExitCode: &code, Reason: s.cause, Message: "the main container, in which the task ran, has ended: " + how}
	case s.cause != "":
		return endRecord{ExitCode: &code, Reason: s.cause, Message: "it was signalled to end: " + how}
	case failure != "":
		return endRecord{Reason: tasks.ReasonStartFailed, Message: failure}
	case status.Signaled():
		return endRecord{ExitCode: &code, Reason: tasks.ReasonSignaled, Message: how}
	case code != 0:
		return endRecord{ExitCode: &code, Reason: tasks.ReasonExited, Message: how}
	}
	return endRecord{ExitCode: &code}
}

// notify has the executor, if one runs at the moment, look again.
func (s *shim) notify() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unixgram", socketPath(filepath.Dir(filepath.Dir(string(s.directory)))))
	if err != nil {
		return
	}
	defer connection.Close()
	if connection.SetWriteDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = strings.NewReader(s.directory.base()).WriteTo(connection)
	}
}

func socketPath(stateDir string) string { return filepath.Join(stateDir, notifySocket) }
