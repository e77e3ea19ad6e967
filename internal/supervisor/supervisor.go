// Package supervisor is the first process of our containers. It keeps one program running: the
// daemon of a sandbox, the daemon of an egress sidecar, the executor of tasks. In a sandbox it runs
// the entrypoint beside it, and ends with the entrypoint's status. It forwards signals, and reaps
// every child, orphans included. It imports next to nothing, because it must not fail and there is
// one in every sandbox.
//
// A single goroutine signals processes and reaps them, so a signal never reaches a process id that
// the kernel has given to another process meanwhile.
package supervisor

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// spareThreads are for signals, messages, and a margin: this process does one thing at a time (see
// process.ReserveThreads).
const spareThreads = 3

// Values of Options.Prefix of our programs.
const (
	PrefixExecd        = "EXECD"
	PrefixEgress       = "EGRESS"
	PrefixTaskExecutor = "TASK_EXECUTOR"
)

// Options say what Run starts. Everything gets the standard output and error of this process, and
// its environment.
type Options struct {
	// Name is the name of this program, for its messages, which go to the standard error.
	Name string
	// Program is the command line of the program that is kept running; its first word is a path. It
	// leads a session of its own.
	Program []string
	// Prefix begins the names of the environment variables that the program gets from Run, each the
	// number of an open file or a count:
	//
	//	PREFIX_READY_FD     the program writes one byte to it once it works, and closes it; no process that it starts before may have it
	//	PREFIX_STARTED_FD   with an entrypoint and AwaitReady: the program reads one byte from it when the entrypoint was started, and its
	//	                    end when it cannot be
	//	PREFIX_RESTARTS     how often the program was started before
	//	PREFIX_LISTENER_FD  Listener
	//	PREFIX_STATE_FD     State
	//
	// Variables of these names that Run finds in the environment are not passed on.
	Prefix string
	// Listener, if not nil, is a socket that listens already. Every start of the program gets it.
	// So no other process of the sandbox can take its port: not before the program runs, and not
	// while it is started again, when connections wait for it.
	Listener *os.File
	// State, if not nil, is a file for what one run of the program leaves to the next.
	State *os.File
	// LongestPause bounds the pause before the program is started again. There is none at first,
	// then 100 ms, doubling each time.
	LongestPause time.Duration
	// Meanwhile says what holds while the program does not run, for messages; it may be empty.
	Meanwhile string
	// Deliver, without an entrypoint, has a signal that ends the container wait until the program
	// works, which is started for it at once if it does not run. Else a signal that comes while the
	// program does not run ends the container at once.
	Deliver bool

	// Entrypoint, if not empty, is the command line that the container is for; its first word is
	// looked up in PATH. It gets the standard input, and the environment without the variables of
	// execd (see [process.Environment]).
	Entrypoint []string
	// Idle is for an entrypoint that does nothing until SIGTERM, SIGINT or SIGHUP: this process
	// does that itself, without starting Entrypoint, and the status is 0 then. Other signals have
	// no effect.
	Idle bool
	// AwaitReady starts the entrypoint only when the program works.
	AwaitReady bool
	// StopSignal is what the entrypoint gets in place of SIGTERM; 0 means SIGTERM itself.
	StopSignal syscall.Signal
	// StopGrace is how long the entrypoint may take to end after SIGTERM before it is killed; 0
	// means as long as it likes.
	StopGrace time.Duration
	// Grace is how long the program may take to stop once the entrypoint has ended.
	Grace time.Duration
}

// Run starts the program, again and again, and returns the status for the container.
//
// With an entrypoint it returns when the entrypoint has ended and the program was stopped: the
// entrypoint's exit code, 128+N when signal N ended it, 127 when it does not exist, 126 when it
// cannot be executed. Signals go to the entrypoint; one that arrives before the entrypoint runs is
// kept and then forwarded. Without an entrypoint Run returns when the program ends after SIGTERM,
// SIGINT or SIGHUP, which are passed on to it.
//
// A program that ends before it has ever worked, though that is awaited or there is no entrypoint,
// ends the container with its status: what cannot work is seen at once.
//
// Run takes over the signals of this process and waits for all its children: nothing else in the
// process may call signal.Notify or wait for a child.
func Run(o Options) int {
	if len(o.Program) == 0 {
		o.say("usage: " + o.Name + " PROGRAM [ARGUMENT...]")
		return exitUsage
	}
	sandbox := len(o.Entrypoint) > 0
	terminal := sandbox && releaseTerminal(os.Stdin)
	s := &supervisor{Options: o, signals: notify()}
	defer s.signals.stop()
	// Process 1 gets the orphans of its namespace anyway; under another first process they come
	// here only by asking.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		o.say("orphaned processes will not be reaped: " + err.Error())
	}
	s.program.pauses.longest = o.LongestPause
	started := s.startProgram()
	switch {
	case !sandbox && !started:
		return exitFailure
	case sandbox:
		// While the program starts, and before anything runs that could take every thread there is.
		process.ReserveThreads(1, spareThreads)
		s.signals.notifyAll()
		if o.AwaitReady && !(started && s.awaitReady()) {
			return s.programFailed()
		}
		if o.Idle {
			s.idle = true
		} else if err := s.startEntrypoint(terminal); err != nil {
			o.say("cannot start the entrypoint \"" + o.Entrypoint[0] + "\": " + err.Error())
			s.reportStart(false)
			s.stopProgram()
			return process.StartFailure(err)
		}
		s.reportStart(true)
	}
	return s.loop()
}

type supervisor struct {
	Options
	signals    signals
	program    program
	idle       bool               // the entrypoint that does nothing has begun
	stopping   bool               // without an entrypoint: the program was signalled to end
	entrypoint int                // process id; 0 once it was reaped
	overdue    <-chan time.Time   // fires when the entrypoint has not ended in time; nil until it has to
	status     syscall.WaitStatus // of the entrypoint, once it was reaped
}

// loop runs until the container is to end, and returns its status.
func (s *supervisor) loop() int {
	sandbox := s.entrypoint != 0
	for {
		select {
		case sig := <-s.signals.forward:
			switch {
			case s.idle:
				if sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGHUP {
					s.stopProgram()
					return 0
				}
			case sandbox:
				s.signal(s.entrypoint, s.forEntrypoint(sig.(syscall.Signal)))
				if sig == syscall.SIGTERM && s.StopGrace > 0 && s.overdue == nil {
					s.overdue = time.After(s.StopGrace)
				}
			case s.program.pid == 0 && !(s.Deliver && s.startProgram()):
				return 0
			default:
				if s.Deliver && s.program.ready != 0 {
					s.readReady()
				}
				s.stopping = true
				s.signal(s.program.pid, sig.(syscall.Signal))
			}
		case <-s.signals.children:
			ended := s.reap()
			switch {
			case sandbox && s.entrypoint == 0:
				s.stopProgram()
				return process.ExitCode(s.status)
			case ended && !sandbox && !s.idle && (s.stopping || !s.program.worked):
				return process.ExitCode(s.program.status)
			case ended:
				s.scheduleProgram()
			}
		case <-s.overdue: // not left to the engine, which would kill the program too, and what it has to say
			s.signal(s.entrypoint, syscall.SIGKILL)
		case <-s.program.restart:
			s.startProgram()
		}
	}
}

// forEntrypoint returns what the entrypoint gets of a signal.
func (s *supervisor) forEntrypoint(sig syscall.Signal) syscall.Signal {
	if sig == syscall.SIGTERM && s.StopSignal != 0 {
		return s.StopSignal
	}
	return sig
}

// startEntrypoint starts the entrypoint as the leader of a new session, with the terminal as the
// controlling one if there is a terminal, so that a shell has job control. [process.StartFailure]
// turns its error into an exit code.
func (s *supervisor) startEntrypoint(terminal bool) error {
	if s.Entrypoint[0] == "" {
		s.say("the entrypoint is empty")
		return syscall.ENOENT
	}
	env := os.Environ()
	path, err := process.LookPath(s.Entrypoint[0], env)
	if err != nil {
		return err
	}
	s.entrypoint, err = syscall.ForkExec(path, s.Entrypoint, &syscall.ProcAttr{
		Env:   process.Environment(env),
		Files: []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: terminal},
	})
	if err == nil {
		process.PreferForOOMKill(s.entrypoint)
	}
	if errors.Is(err, syscall.ENOENT) {
		if _, missing := os.Stat(path); missing == nil {
			s.say(path + " exists, but the interpreter or loader that it names does not")
		}
	}
	return err
}

// reap collects every child that has ended and reports whether the program was among them. It takes
// all of them before anything follows from the result, because several deaths may share one
// SIGCHLD.
func (s *supervisor) reap() (programEnded bool) {
	process.Reap(func(pid int, status syscall.WaitStatus) {
		switch pid {
		case s.entrypoint:
			s.entrypoint, s.status = 0, status
		case s.program.pid:
			s.programEnded(status)
			programEnded = true
		}
	})
	return programEnded
}

// signal sends to a child that was not reaped yet, so the id is still its own.
func (s *supervisor) signal(pid int, sig syscall.Signal) {
	if err := syscall.Kill(pid, sig); err != nil {
		s.say("signal " + unix.SignalName(sig) + " not delivered: " + err.Error())
	}
}

func (o Options) say(text string) {
	// With its own reader gone there is no other place for a message.
	_, _ = os.Stderr.WriteString(o.Name + ": " + strings.TrimSpace(text) + "\n")
}
