package initd

import (
	"fmt"
	"os"
	"slices"
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
}

// startDaemon starts the daemon, or plans another attempt: the entrypoint goes on either way.
func (i *initd) startDaemon() {
	i.daemon.restart = nil
	i.daemon.started = time.Now()
	pid, err := spawnDaemon(i.Options)
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
// process group. It speaks on the standard error, because the standard output belongs to the entrypoint.
func spawnDaemon(o Options) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	env, files := o.Env, []uintptr{null.Fd(), o.Stderr.Fd(), o.Stderr.Fd()}
	if o.State != nil {
		env = append(slices.Clip(env), fmt.Sprintf("%s=%d", StateVariable, len(files)))
		files = append(files, o.State.Fd())
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

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
