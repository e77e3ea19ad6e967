package initd

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is what init knows of execd's daemon, running or not.
type daemon struct {
	pid     int // 0 while it is not running
	status  unix.WaitStatus
	started time.Time
	backoff backoff
	restart <-chan time.Time // fires when the next start is due; nil while none is planned
	shield  *os.File         // ends when the daemon has shielded itself or has ended; nil when nothing waits for that
}

// startDaemon starts the daemon, or plans another attempt: the entrypoint goes on either way.
func (i *initd) startDaemon() {
	i.daemon.restart = nil
	i.daemon.started = time.Now()
	pid, err := i.spawnDaemon()
	if err != nil {
		delay := i.daemon.backoff.next(0)
		i.daemon.restart = time.After(delay)
		i.Logger.Error().Err(err).Str("retry_in", delay.String()).Msg("daemon not started")
		return
	}
	i.daemon.pid = pid
	i.Logger.Debug().Int("pid", pid).Msg("daemon started")
}

// scheduleDaemon plans the restart of a daemon that ended while the entrypoint runs: nothing inside a sandbox keeps
// the sandbox's own code from killing it.
func (i *initd) scheduleDaemon() {
	lived := time.Since(i.daemon.started)
	delay := i.daemon.backoff.next(lived)
	i.daemon.restart = time.After(delay)
	i.Logger.Warn().Str("status", describe(i.daemon.status)).Str("lived", lived.Round(time.Millisecond).String()).
		Str("restart_in", delay.String()).Msg("daemon ended")
}

// stopDaemon ends the daemon: gracefully within Grace and a margin, then by force. Signals that arrive meanwhile have
// nobody left to go to.
func (i *initd) stopDaemon() {
	if i.Listener != nil { // so that nothing connects to what will not answer
		i.Listener.Close()
		i.Listener = nil
	}
	if i.daemon.pid == 0 {
		return
	}
	i.signal(i.daemon.pid, unix.SIGTERM)
	deadline := time.NewTimer(i.Grace + stopMargin)
	defer deadline.Stop()
	for i.daemon.pid != 0 {
		select {
		case <-i.signals.children:
			i.reap()
		case <-deadline.C:
			i.Logger.Warn().Msg("daemon does not stop, killing it")
			i.signal(i.daemon.pid, unix.SIGKILL)
		}
	}
}

// spawnDaemon starts the daemon in a session of its own, away from the terminal and from signals to the entrypoint's
// process group. Its standard output and error are init's: without EXECD_LOG_FILE its log goes to the standard output.
func (i *initd) spawnDaemon() (int, error) {
	o := i.Options
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	// What an image sets under these names is not what init hands over.
	env := slices.DeleteFunc(slices.Clone(o.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == StateVariable || name == ListenerVariable || name == ShieldedVariable
	})
	files := []uintptr{null.Fd(), o.Stdout.Fd(), o.Stderr.Fd()}
	hand := func(variable string, file *os.File) {
		env = append(env, fmt.Sprintf("%s=%d", variable, len(files)))
		files = append(files, file.Fd())
	}
	if o.State != nil {
		hand(StateVariable, o.State)
	}
	if o.Listener != nil {
		hand(ListenerVariable, o.Listener)
	}
	if o.Shield && i.entrypoint == 0 {
		reader, writer, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		defer writer.Close()
		i.daemon.shield = reader
		hand(ShieldedVariable, writer)
	}
	pid, err := syscall.ForkExec(o.Daemon[0], o.Daemon, &syscall.ProcAttr{
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %q: %w", o.Daemon[0], err)
	}
	return pid, nil
}

// awaitShield waits until the daemon that was just started has shielded itself. No other process of the sandbox is there yet, so nothing
// but its own end can keep it from that, and the pipe ends with it.
func (i *initd) awaitShield() {
	if i.daemon.shield == nil { // it could not be started
		return
	}
	_, _ = i.daemon.shield.Read(make([]byte, 1)) // it ends without a byte
	i.daemon.shield.Close()
	i.daemon.shield = nil
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
