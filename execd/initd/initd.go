// Package initd is PID 1 of a sandbox. It starts the sandbox's entrypoint and, beside it, execd's daemon; forwards
// signals to the entrypoint; reaps every child, orphans included; restarts a daemon that dies; and ends with the
// entrypoint's status.
//
// The container's standard output belongs to the entrypoint alone. Whatever the daemon and init themselves have to
// say goes to the standard error, unless the daemon has a log file.
//
// Everything happens in one goroutine: a process is signalled and reaped in the same place, so a signal can never hit
// a process id that the kernel has given to somebody else meanwhile.
package initd

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// stopMargin is what the daemon gets beyond Options.Grace before it is killed: 2 s in which it ends commands, and as
// much again and more for their ends to reach their streams.
const stopMargin = 5 * time.Second

// StateVariable names the environment variable that tells the daemon which of its open files is Options.State. A daemon that has the
// variable is a child of its init.
const StateVariable = "EXECD_STATE_FD"

// ListenerVariable names the environment variable that holds the number of the daemon's open file that is Options.Listener.
const ListenerVariable = "EXECD_LISTENER_FD"

// ShieldedVariable names the environment variable that tells the daemon which of its open files it closes once no other process of the
// sandbox can look into its memory. Init waits for that.
const ShieldedVariable = "EXECD_SHIELDED_FD"

// NewState returns a file in memory, for Options.State.
func NewState() (*os.File, error) {
	fd, err := unix.MemfdCreate("execd-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "execd-state"), nil
}

// Options say what Run starts.
type Options struct {
	// Entrypoint is the sandbox's own command line; its first word is looked up in the PATH of Env.
	Entrypoint []string
	// Daemon is the command line of execd's daemon; its first word is a path.
	Daemon []string
	// Env is the container's environment. The daemon gets all of it, the entrypoint what config.SandboxEnv leaves.
	Env []string
	// Stdin, Stdout and Stderr are handed to the entrypoint as they are.
	Stdin, Stdout, Stderr *os.File
	// State, if not nil, is handed to every daemon, under the number that StateVariable has: what a daemon writes into it, the next one
	// finds.
	State *os.File
	// Listener, if not nil, is the daemon's socket, which listens already. Every daemon gets it, under the number that ListenerVariable
	// has. So no other process of the sandbox can take its port: not before the first daemon runs, and not while one is started again,
	// when connections wait for it.
	Listener *os.File
	// Shield makes the entrypoint wait until the first daemon has shielded itself, see ShieldedVariable, or has ended.
	Shield bool
	// Logger reports what happens to the daemon.
	Logger zerolog.Logger
	// Grace is the daemon's own graceful shutdown timeout.
	Grace time.Duration
}

// Run starts the entrypoint and the daemon and returns when both have ended, with the status for the container: the
// entrypoint's exit code, 128+N when signal N killed it, 127 when it does not exist, 126 when it cannot be executed.
//
// Run takes over the signals of the process and waits for all its children: nothing else in the process may call
// signal.Notify or wait for a child. A signal that arrives before the entrypoint runs is kept and then forwarded.
func Run(o Options) int {
	terminal := releaseTerminal(o.Stdin)
	i := &initd{Options: o, signals: notify()}
	defer i.signals.stop()

	// PID 1 gets the orphans anyway; under another init they come here only by asking.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		o.Logger.Warn().Err(err).Msg("orphaned processes will not be reaped")
	}

	if o.Shield {
		// The daemon goes first: the entrypoint could read the token from a daemon that does not shield itself yet.
		i.startDaemon()
		i.awaitShield()
	}
	pid, err := startEntrypoint(o, terminal)
	if err != nil {
		fmt.Fprintf(o.Stderr, "execd init: %v\n", err)
		i.stopDaemon()
		return startFailure(err)
	}
	i.entrypoint = pid
	if !o.Shield {
		i.startDaemon()
	}

	// What the start left behind on the heap is not needed again; this process lives as long as the sandbox.
	debug.FreeOSMemory()
	i.loop()
	i.stopDaemon()
	return exitCode(i.status)
}

type initd struct {
	Options
	signals    signals
	entrypoint int             // process id; 0 once it was reaped
	status     unix.WaitStatus // of the entrypoint, once it was reaped
	daemon     daemon
}

// loop runs until the entrypoint has ended.
func (i *initd) loop() {
	for {
		select {
		case sig := <-i.signals.forward:
			i.signal(i.entrypoint, sig.(unix.Signal))
		case <-i.signals.children:
			ended := i.reap()
			switch {
			case i.entrypoint == 0:
				return
			case ended:
				i.scheduleDaemon()
			}
		case <-i.daemon.restart:
			i.startDaemon()
		}
	}
}

// reap collects every child that has ended and reports whether the daemon was among them. It takes all of them before
// anybody acts on the result, because several deaths may share one SIGCHLD.
func (i *initd) reap() (daemonEnded bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid == 0: // no child at all, or none that has ended
			return daemonEnded
		case pid == i.entrypoint:
			i.entrypoint, i.status = 0, status
		case pid == i.daemon.pid:
			i.daemon.pid, i.daemon.status = 0, status
			daemonEnded = true
		}
	}
}

// signal sends to a child that was not reaped yet, so the id is still its own.
func (i *initd) signal(pid int, sig unix.Signal) {
	if err := unix.Kill(pid, sig); err != nil {
		i.Logger.Warn().Err(err).Int("pid", pid).Str("signal", unix.SignalName(sig)).Msg("signal not delivered")
	}
}
