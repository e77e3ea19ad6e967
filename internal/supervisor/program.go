package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

// stopMargin is what the program gets beyond Options.Grace before it is killed: 2 s in which execd
// ends commands, and as much again and more for their ends to reach their streams.
const stopMargin = 5 * time.Second

// The variables that the program gets, after Options.Prefix.
const (
	readySuffix    = "_READY_FD"
	startedSuffix  = "_STARTED_FD"
	restartsSuffix = "_RESTARTS"
	listenerSuffix = "_LISTENER_FD"
	stateSuffix    = "_STATE_FD"
)

// program is the program that is kept running.
type program struct {
	pid     int                // 0 while it does not run
	status  syscall.WaitStatus // of the last run that has ended
	started time.Time
	starts  int
	pauses  backoff
	restart <-chan time.Time // fires when the next start is due; nil while none is planned
	ready   int              // descriptor of the pipe on which it reports that it works; 0 when that is not read any more
	worked  bool             // some run of it has reported that
	waits   int              // descriptor of the pipe on which it waits for the start of the entrypoint; 0 when it does not
}

// startProgram starts the program, or plans another attempt.
func (s *supervisor) startProgram() bool {
	p := &s.program
	p.restart = nil
	p.started = time.Now()
	pid, err := s.spawnProgram()
	if err != nil {
		pause := p.pauses.next(0)
		p.restart = time.After(pause)
		s.say("program not started: " + s.Program[0] + ": " + err.Error() + "; tried again in " + pause.String())
		return false
	}
	p.pid = pid
	return true
}

func (s *supervisor) spawnProgram() (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer syscall.Close(pipe[1])
	env := slices.DeleteFunc(os.Environ(), s.isOwn)
	env = append(env, s.Prefix+restartsSuffix+"="+strconv.Itoa(s.program.starts))
	files := []uintptr{null.Fd(), os.Stdout.Fd(), os.Stderr.Fd()}
	inherit := func(suffix string, fd uintptr) {
		env = append(env, s.Prefix+suffix+"="+strconv.Itoa(len(files)))
		files = append(files, fd)
	}
	inherit(readySuffix, uintptr(pipe[1]))
	var wait [2]int
	if s.AwaitReady && len(s.Entrypoint) > 0 {
		if err := syscall.Pipe2(wait[:], syscall.O_CLOEXEC); err != nil {
			syscall.Close(pipe[0])
			return 0, err
		}
		defer syscall.Close(wait[0])
		inherit(startedSuffix, uintptr(wait[0]))
	}
	if s.Listener != nil {
		inherit(listenerSuffix, s.Listener.Fd())
	}
	if s.State != nil {
		inherit(stateSuffix, s.State.Fd())
	}
	pid, err = syscall.ForkExec(s.Program[0], s.Program, &syscall.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	s.program.waits = wait[1]
	if err != nil {
		syscall.Close(pipe[0])
		s.reportStart(false)
		return 0, err
	}
	s.program.ready = pipe[0]
	s.program.starts++
	if s.entrypoint != 0 || s.idle {
		s.reportStart(true)
	}
	return pid, nil
}

// reportStart reports to the program whether the entrypoint was started.
func (s *supervisor) reportStart(started bool) {
	if s.program.waits == 0 {
		return
	}
	if started {
		_, _ = syscall.Write(s.program.waits, []byte{1}) // an error is that of a program that has ended
	}
	syscall.Close(s.program.waits)
	s.program.waits = 0
}

// isOwn reports whether a variable is one that only this process sets. What an image sets under its
// name is not passed on.
func (s *supervisor) isOwn(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	suffix, ours := strings.CutPrefix(name, s.Prefix)
	return ours && slices.Contains([]string{readySuffix, startedSuffix, restartsSuffix, listenerSuffix, stateSuffix}, suffix)
}

// awaitReady waits until the program works, and reports false when it has ended before.
func (s *supervisor) awaitReady() bool {
	s.readReady()
	return s.program.worked
}

// readReady reads what the program has reported, and is not asked again for the same run.
func (s *supervisor) readReady() {
	p := &s.program
	var report [1]byte
	n, err := 0, error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		n, err = syscall.Read(p.ready, report[:])
	}
	p.worked = p.worked || n == 1
	syscall.Close(p.ready)
	p.ready = 0
}

// programEnded takes note of the end of the program, which was reaped.
func (s *supervisor) programEnded(status syscall.WaitStatus) {
	p := &s.program
	p.pid, p.status = 0, status
	if p.ready != 0 {
		// Another process may hold the other end, so that an end of the pipe would not be seen.
		_ = syscall.SetNonblock(p.ready, true)
		s.readReady()
	}
}

// programFailed waits for a program that ended before it worked, and returns the status for the
// container.
func (s *supervisor) programFailed() int {
	if s.program.starts == 0 {
		return exitFailure
	}
	for s.program.pid != 0 {
		<-s.signals.children
		s.reap()
	}
	return process.ExitCode(s.program.status)
}

// scheduleProgram plans the restart of a program that has ended: nothing inside a sandbox keeps the
// sandbox's own code from killing it.
func (s *supervisor) scheduleProgram() {
	p := &s.program
	lived := time.Since(p.started)
	pause := p.pauses.next(lived)
	p.restart = time.After(pause)
	text := "the program has ended after " + lived.Round(time.Millisecond).String() + ": " + describe(p.status) + "; it is started again in " + pause.String()
	if s.Meanwhile != "" {
		text += ", and " + s.Meanwhile + " until then"
	}
	s.say(text)
}

// stopProgram ends the program: gracefully within Grace and a margin, then by force. Signals that
// arrive meanwhile are dropped.
func (s *supervisor) stopProgram() {
	if s.Listener != nil { // so that nothing connects to what will not answer
		s.Listener.Close()
		s.Listener = nil
	}
	if s.program.pid == 0 {
		return
	}
	s.signal(s.program.pid, syscall.SIGTERM)
	deadline := time.NewTimer(s.Grace + stopMargin)
	defer deadline.Stop()
	for s.program.pid != 0 {
		select {
		case <-s.signals.children:
			s.reap()
		case <-deadline.C:
			s.say("the program does not stop: killing it")
			s.signal(s.program.pid, syscall.SIGKILL)
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return "exit code " + strconv.Itoa(status.ExitStatus())
}
