package taskexecutor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"reflect"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

const (
	// What is waited for without a notification is looked for after the first pause, then in longer
	// ones, up to the longest.
	firstPause   = 5 * time.Millisecond
	longestPause = 250 * time.Millisecond

	// patience is how long a shim may take beyond the grace of its task before it is killed, and
	// how long what was killed may take to end.
	patience = 10 * time.Second
)

// manage does what the records of one task require, from its start to its end. It returns when the
// task is forgotten or the executor stops.
func (e *Executor) manage(t *entry) {
	pause := firstPause
	for {
		// What changes may be readable again in a moment: its error is no reason to give the task
		// up.
		snapshot, err := t.directory.load()
		if snapshot.end != nil {
			failpoint.Hit(EndedFailpoint)
		}
		e.update(t, snapshot, err)
		deleting, stopping := e.asked(t)
		mayRun := snapshot.started != nil && snapshot.end == nil
		if deleting && (!mayRun || err != nil || t.damage != nil) && e.forget(t) {
			// A shim that has not started the task yet will not, and one that has recorded its end
			// is about to exit.
			return
		}
		switch {
		case mayRun && e.awaitEnd(t, snapshot, err):
			pause = firstPause
		case stopping:
			return // the next executor does what is left to do, and starts what was never started
		case mayRun || deleting || err != nil:
			pause = e.sleep(t, pause)
		case t.damage != nil || snapshot.end != nil:
			select {
			case <-t.wakeup:
			case <-e.stopping:
			}
		case e.start(t):
			pause = firstPause
		default:
			pause = e.sleep(t, pause)
		}
	}
}

// asked returns what is asked for: the end of the task, the end of the executor.
func (e *Executor) asked(t *entry) (deleting, stopping bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.deleting, !e.running
}

// sleep returns after the pause, or earlier if something has happened, and says how long the next
// pause is.
func (e *Executor) sleep(t *entry, pause time.Duration) time.Duration {
	stopping := e.stopping
	if _, already := e.asked(t); already {
		stopping = nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.wakeup:
	case <-stopping:
	}
	return min(2*pause, longestPause)
}

// retryAfter is when what failed is tried again, never without an error.
func retryAfter(err error) <-chan time.Time {
	if err == nil {
		return nil
	}
	return time.After(longestPause)
}

// statusOf returns the status that the records stand for. unreadable is the error with which they
// were read.
func (e *Executor) statusOf(t *entry, s snapshot, unreadable error) tasks.Status {
	status := tasks.Status{Name: t.name, State: tasks.Pending, Reason: tasks.ReasonStarting}
	if s.running != nil {
		status.State, status.Reason, status.StartedAt = tasks.Running, "", &s.running.At
		status.Ready = t.task.Readiness == nil || s.ready
		if !status.Ready {
			status.Reason, status.Message = tasks.ReasonNotReady, "its readiness has not been answered with 200 yet"
		}
	}
	if t.damage != nil {
		unreadable = t.damage
	}
	switch {
	case unreadable != nil:
		status.State, status.Ready = tasks.Unknown, false
		status.Reason, status.Message = tasks.ReasonRecordDamaged, "what is recorded about it cannot be read: "+unreadable.Error()
	case s.end != nil:
		status.State, status.Ready, status.FinishedAt = tasks.Failed, false, &s.end.At
		status.ExitCode, status.Reason, status.Message = s.end.ExitCode, s.end.Reason, s.end.Message
		if s.end.Reason == "" {
			status.State = tasks.Succeeded
		}
	}
	return status
}

// update makes the status what the records stand for. unreadable is the error with which they were
// read.
func (e *Executor) update(t *entry, s snapshot, unreadable error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.deleted && !t.deleting { // by an executor before; it could not be read until now
		t.deleting = true
		e.bumpVersion()
	}
	status := e.statusOf(t, s, unreadable)
	if status.State == tasks.Pending && t.status.Reason == tasks.ReasonWaitingForMain {
		status = t.status // until it is known to be otherwise
	}
	e.setStatus(t, status)
}

// setStatus changes the status of a task. The caller holds the mutex.
func (e *Executor) setStatus(t *entry, status tasks.Status) {
	if reflect.DeepEqual(status, t.status) {
		return
	}
	if status.State != t.status.State {
		e.Logger.Info().Str("task", t.name).Str("state", string(status.State)).Str("reason", status.Reason).Str("detail", status.Message).
			Msg("task " + string(status.State))
	}
	t.status = status
	e.bumpVersion()
}

// forget removes a task of which nothing runs, and reports whether it could.
func (e *Executor) forget(t *entry) bool {
	lock, locked, err := t.directory.lock()
	switch {
	case err == nil && !locked:
		return false
	case err == nil:
		err = errors.Join(t.directory.remove(), lock.Close())
	case errors.Is(err, fs.ErrNotExist): // the directory: a removal that failed had come that far
		err = t.directory.remove()
	}
	if err != nil {
		e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot remove the task's records; retrying")
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.entries, t.name)
	close(t.gone)
	e.bumpVersion()
	e.Logger.Info().Str("task", t.name).Msg("task forgotten")
	return true
}

// start starts the task's shim, if there is a main container, and waits until the task has been
// started or the shim has ended. It reports whether the task has been started.
func (e *Executor) start(t *entry) bool {
	if _, _, err := findMain(e.MainMarker); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		status := t.status
		status.Reason, status.Message = tasks.ReasonWaitingForMain, err.Error()
		e.setStatus(t, status)
		return false
	}
	e.mu.Lock()
	e.setStatus(t, tasks.Status{Name: t.name, State: tasks.Pending, Reason: tasks.ReasonStarting})
	e.mu.Unlock()
	// Its environment is empty: nothing that is ours alone shall be found there.
	command := exec.Command(e.exe, shimArguments(t.directory, e.MainMarker)...)
	command.Env = []string{}
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot start the shim; retrying")
		return false
	}
	failpoint.Hit(ShimStartedFailpoint)
	ended := make(chan struct{})
	e.background.Go(func() {
		process.AwaitExit(command.Process.Pid)
		_ = command.Wait() // the records have the result
		close(ended)
	})
	ticker := time.NewTicker(longestPause)
	defer ticker.Stop()
	for {
		if snapshot, err := t.directory.load(); err != nil || snapshot.started != nil {
			return err == nil
		}
		if deleting, stopping := e.asked(t); deleting || stopping {
			// Nothing is to be started any more; a shim that has ended needs no signal.
			_ = command.Process.Signal(signalEnd)
		}
		select {
		case <-t.wakeup:
		case <-ticker.C:
		case <-ended:
			snapshot, err := t.directory.load()
			return err == nil && snapshot.started != nil
		}
	}
}

// awaitEnd returns when the shim of a task that was started has ended. Until then it passes
// requests to end the task on, and probes it. unreadable is the error with which the snapshot was
// read. It reports false when the shim had ended before, and how is not recorded yet.
func (e *Executor) awaitEnd(t *entry, s snapshot, unreadable error) bool {
	pidfd, err := s.started.Shim.Open()
	if errors.Is(err, process.ErrEnded) {
		return e.recordLost(t)
	}
	if err != nil {
		e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot watch the shim; retrying")
		e.sleep(t, longestPause)
		return true
	}
	ended := process.Ended(pidfd)
	defer func() { <-ended }()
	defer pidfd.Close()
	stopping := e.stopping
	var signalled unix.Signal
	var overdue, ready <-chan time.Time
	again := retryAfter(unreadable)
	var probing *probe
	defer func() { probing.stop() }()
	for {
		deleting, stopped := e.asked(t)
		if wanted := e.signalFor(t, deleting, stopped); wanted != signalled && wanted != 0 {
			if err := process.Send(pidfd, wanted); err != nil {
				e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot signal the shim to end its task")
			}
			signalled = wanted
			wait := patience
			if wanted == signalEnd {
				wait += t.task.Grace()
			}
			overdue = time.After(wait)
		}
		if probing == nil && t.task.Readiness != nil && s.running != nil && !s.ready && s.end == nil {
			probing = startProbe(*t.task.Readiness)
		}
		select {
		case <-ended:
			return true
		case <-t.wakeup:
		case <-again:
		case <-stopping:
			stopping = nil
		case <-overdue:
			e.Logger.Warn().Str("task", t.name).Msg("killing the shim and its task: the shim did not end the task in time")
			overdue = nil
			if err := process.Send(pidfd, unix.SIGKILL); err != nil {
				e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot kill the shim")
			}
		case <-probing.answered():
			probing.stop()
			err := t.directory.mark(readyFile)
			if err != nil {
				e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot write the ready record; retrying")
			}
			ready = retryAfter(err)
		case <-ready:
			ready = retryAfter(t.directory.mark(readyFile))
		}
		now, err := t.directory.load()
		e.update(t, now, err)
		if err == nil {
			s = now
		}
		again = retryAfter(err)
	}
}

// signalFor returns the signal for the shim, 0 for none.
func (e *Executor) signalFor(t *entry, deleting, stopping bool) unix.Signal {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case deleting && t.kill:
		return signalKill
	case deleting || stopping:
		return signalEnd
	}
	return 0
}

// recordLost records the end of a task whose shim was killed, after it has made sure that nothing
// of it is left. It reports whether the end is recorded.
func (e *Executor) recordLost(t *entry) bool {
	lock, locked, err := t.directory.lock()
	if err == nil && !locked {
		err = errors.New("another process holds its lock")
	}
	if err == nil {
		// The end may have been recorded since we looked.
		defer lock.Close()
		var s snapshot
		if s, err = t.directory.load(); err != nil || s.end != nil {
			return err == nil
		}
		if s.running != nil {
			err = killAndAwait(s.running.Process)
		}
		e.sweep()
		code := process.SignalCode(unix.SIGKILL)
		end := endRecord{
			ExitCode: &code, Reason: tasks.ReasonExecutorLost, At: time.Now().UTC(),
			Message: "the process that watched over it was killed, together with it or before it; it is not run again",
		}
		if err == nil {
			err = write(string(t.directory), endFile, end)
		}
	}
	if err != nil {
		e.Logger.Error().Err(err).Str("task", t.name).Msg("cannot write the end record; retrying")
	}
	return err == nil
}

// killAndAwait ends a process that is not our child.
func killAndAwait(p process.ID) error {
	pidfd, err := p.Open()
	if errors.Is(err, process.ErrEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	ended := process.Ended(pidfd)
	defer func() { <-ended }()
	defer pidfd.Close()
	if err := process.Send(pidfd, unix.SIGKILL); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d did not exit after SIGKILL", p.PID)
	}
}

// sweep ends the orphans of killed shims. Such processes are children of the container's first
// process and run another program than ours; nothing else is both.
func (e *Executor) sweep() {
	if e.Init == 0 {
		return
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		e.Logger.Error().Err(err).Msg("cannot list orphans of killed shims")
		return
	}
	deadline := time.Now().Add(patience)
	for found := true; found; {
		found = false
		strays, err := children(e.Init)
		if err != nil {
			e.Logger.Error().Err(err).Msg("cannot list orphans of killed shims")
			return
		}
		for _, pid := range strays {
			found = e.killStray(pid, own) || found
		}
		if found && time.Now().After(deadline) {
			e.Logger.Error().Msg("orphans of killed shims did not exit after SIGKILL")
			return
		}
		if found {
			time.Sleep(firstPause)
		}
	}
}

// killStray kills a child of the container's first process, unless it is one of our programs, and
// reports whether it did.
func (e *Executor) killStray(pid int, own os.FileInfo) bool {
	p, err := process.Identify(pid)
	if err != nil {
		return false
	}
	pidfd, err := p.Open()
	if err != nil {
		return false
	}
	defer pidfd.Close()
	s, err := process.ReadStat(process.Directory(pid))
	if err != nil || s.Ended() || s.Parent != e.Init || s.Start != p.Start {
		return false
	}
	// What ends loses its program before it is a zombie; a second look then finds it gone.
	program, err := os.Stat(procPath(pid, "exe"))
	if err == nil && os.SameFile(program, own) {
		return false
	}
	if err := process.Send(pidfd, unix.SIGKILL); err != nil {
		e.Logger.Error().Err(err).Int("pid", pid).Msg("cannot kill an orphan of a killed shim")
	}
	return true
}
