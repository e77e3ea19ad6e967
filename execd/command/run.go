package command

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/internal/process"
)

// run is the part of a command that costs something while it lasts: its process and its pipes.
//
// Nothing waits for a run. Events of it are delivered by the poller, by timers and by whoever
// interrupts it, and are handled by the goroutine that delivers them unless another one is at it;
// so a run is served by one goroutine at a time. The poller serves what cannot block. As soon as a
// command has printed so much that its log is about to go to a file, goroutines of its own take
// over for as long as there is something to do.
//
// The end of a command is the end of its process, not of its pipes: a grandchild may keep a pipe
// open for ever. So when the process has ended, what is in the pipes at that moment, which is all
// that the process itself wrote, is recorded, and the command is over. After that the pipes are
// read on, slowly (see leftovers), and what comes is thrown away, because a grandchild that writes
// to a closed pipe would be killed.
//
// Only a command that was interrupted, or whose timeout has elapsed, ends with its whole process
// group: a shell ends at the signal, and the program that it waited for may have something to
// finish, for as long as [Options.KillDelay].
type run struct {
	poller *poller
	number int32 // by which the poller names it
	pid    int   // of the process, and of its group
	ended  func(*Command)
	kills  *oomkill.Ledger
	before oomkill.Mark // of the kills
	hold   *holds.Hold  // until the command has ended

	killDelay time.Duration // see [Options.KillDelay]

	mu       sync.Mutex
	pending  events
	served   bool        // a goroutine handles the events
	reaped   bool        // the process has been waited for, and its number may be another process's
	stopping reason      // why the process has been signalled to end
	killed   bool        // its group has been sent SIGKILL
	timer    *time.Timer // the timeout, or what follows a signal that did not help

	// What follows belongs to whoever serves.
	command *Command // nil once the command has ended: a run that lasts longer must not hold its log
	process *os.Process
	outputs [2]output
	pause   time.Duration // before the process group is looked at once more
}

// events is a set of what can happen to a run.
type events uint8

const (
	readable  events = 1 << 0 // the first output has something to be read; shifted by one, the second
	late      events = 1 << 2 // a fragment of the first output is due; shifted by one, of the second
	exited    events = 1 << 4 // the process has ended
	discarded events = 1 << 5 // the command is no longer kept
	excess    events = 1 << 6 // the ended command's first output may be read again, see leftovers; shifted by one, the second
)

// reason is why a process has been signalled to end.
type reason int

const (
	notStopped reason = iota
	timedOut
	interrupted
)

// killedCode is the exit code of a process that SIGKILL has ended.
const killedCode = 128 + int(syscall.SIGKILL)

// A process group whose leader has ended is looked at after the first pause, and then after pauses
// that double up to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 160 * time.Millisecond
)

// startRun starts the process of a command. Events are not handled before release.
func (m *Manager) startRun(c *Command, p *poller, prepared *exec.Cmd) (*run, error) {
	kills := m.options.OOMKills
	r := &run{
		poller: p, ended: m.ended, kills: kills, before: kills.Mark(), killDelay: m.options.KillDelay, command: c, served: true,
	}
	for i, stream := range []eventlog.Type{eventlog.TypeStdout, eventlog.TypeStderr} {
		r.outputs[i] = output{stream: stream, wait: m.runeDelay, fd: -1, log: &c.log, late: func() { r.deliver(late<<i, false) }}
	}
	p.add(r)
	var err error
	if prepared.Stdout, err = r.open(0, prepared.SysProcAttr.Credential); err == nil {
		prepared.Stderr, err = r.open(1, prepared.SysProcAttr.Credential)
	}
	if err == nil {
		err = prepared.Start()
	}
	for _, writer := range []any{prepared.Stdout, prepared.Stderr} {
		if file, ok := writer.(*os.File); ok && file != nil {
			file.Close() // it is the process's now
		}
	}
	if err != nil {
		for i := range r.outputs {
			r.outputs[i].close()
		}
		p.remove(r)
		return nil, err
	}
	r.process, r.pid = prepared.Process, prepared.Process.Pid
	process.PreferForOOMKill(r.pid)
	r.watchExit(prepared.Process)
	return r, nil
}

// open makes the pipe of an output for a process with that credential, watches it, and returns the
// end to write to.
func (r *run) open(i int, credential *syscall.Credential) (*os.File, error) {
	o := &r.outputs[i]
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe for %s: %w", o.stream, err)
	}
	o.fd = ends[0]
	writer := os.NewFile(uintptr(ends[1]), string(o.stream))
	err := unix.SetNonblock(o.fd, true)
	if err == nil {
		err = permitReopen(writer, outputMode, credential)
	}
	if err == nil {
		err = r.poller.watch(o.fd, r, readable<<i)
	}
	if err != nil {
		return writer, fmt.Errorf("prepare the pipe for %s: %w", o.stream, err)
	}
	return writer, nil
}

// release lets the run go, after startRun. Its timeout begins.
func (r *run) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if timeout := r.command.timeout; timeout > 0 {
		expire := func() { r.stop(timedOut) }
		if r.command.abrupt {
			expire = r.killTimedOut
		}
		r.timer = time.AfterFunc(timeout, expire)
	}
	if r.served = r.pending != 0; r.served {
		go r.serve(false)
	}
}

// deliver adds events and has them handled. On the poller nothing may block.
func (r *run) deliver(e events, onPoller bool) {
	r.mu.Lock()
	r.pending |= e
	served := r.served
	r.served = true
	r.mu.Unlock()
	if !served {
		r.serve(onPoller)
	}
}

// serve deals with events until there are none.
func (r *run) serve(onPoller bool) {
	var again events
	for {
		r.mu.Lock()
		e := r.pending | again
		r.pending = 0
		if e == 0 {
			r.served = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		if onPoller && r.mayBlock(e) {
			r.mu.Lock()
			r.pending |= e
			r.mu.Unlock()
			go r.serve(false)
			return
		}
		again = r.handle(e, onPoller)
	}
}

// mayBlock reports whether dealing with the events may have to wait for a disk.
func (r *run) mayBlock(e events) bool {
	if r.command == nil {
		return false
	}
	if e&exited != 0 && r.outputs[0].waiting()+r.outputs[1].waiting() > 2*eventlog.MaxFragment {
		return true // a process has made its pipe larger than usual
	}
	return r.command.log.MayBlock()
}

// handle deals with events and returns those that are to be dealt with again.
func (r *run) handle(e events, onPoller bool) (again events) {
	for i := range r.outputs {
		if e&(late<<i) != 0 {
			r.outputs[i].due()
		}
		if e&(readable<<i) != 0 {
			if r.command == nil {
				r.postpone(i)
			} else {
				again |= r.read(i, onPoller)
			}
		}
		if e&(excess<<i) != 0 {
			r.outputs[i].postponed = false
			r.discard(i)
		}
	}
	if r.command == nil {
		e &^= exited // the group was looked at again, or killed, when the command was over
	}
	if e&exited != 0 && !process.HasExited(r.process.Pid) {
		// Another process traces it, and only that one can wait for it until it lets go.
		r.deliverExit(r.process.Pid)
		e &^= exited
	}
	if e&exited != 0 && r.lingers() {
		e &^= exited
	}
	if e&exited != 0 {
		r.finish()
		again = 0 // finish has read it
		for i := range r.outputs {
			r.discard(i) // to see whether another process still has it open
		}
	}
	if e&discarded != 0 {
		for i := range r.outputs {
			r.outputs[i].close()
		}
	}
	if r.command == nil && r.outputs[0].fd < 0 && r.outputs[1].fd < 0 {
		r.poller.remove(r)
	}
	return again
}

// read reads an output once. The poller serves others before it reads on.
func (r *run) read(i int, onPoller bool) (again events) {
	o := &r.outputs[i]
	if o.fd < 0 {
		return 0
	}
	_, result := o.read(eventlog.MaxFragment)
	switch {
	case result == readSome && !onPoller:
		return readable << i
	case result == readEnded:
		o.close()
	case r.poller.rewatch(o.fd, r, readable<<i) != nil:
		o.close() // the poller has been closed
	}
	return 0
}

// postpone has an output of an ended command read when it is its turn.
func (r *run) postpone(i int) {
	if o := &r.outputs[i]; o.fd >= 0 && !o.postponed {
		o.postponed = true
		r.poller.postpone(leftover{r, i})
	}
}

// discard reads an output of an ended command once, and throws away what comes.
func (r *run) discard(i int) {
	o := &r.outputs[i]
	if o.fd < 0 {
		return
	}
	if _, result := o.read(eventlog.MaxFragment); result == readEnded || r.poller.rewatch(o.fd, r, readable<<i) != nil {
		o.close()
	}
}

// lingers reports whether what is left of a signalled group, whose leader has ended, still has time
// to end, and has that looked at again. Until then the leader is not waited for, which keeps the
// group's number from being used again.
func (r *run) lingers() bool {
	r.mu.Lock()
	ending := r.stopping != notStopped && !r.killed
	r.mu.Unlock()
	if !ending || !process.GroupRuns(r.pid) {
		return false
	}
	r.pause = min(max(2*r.pause, firstPause), lastPause)
	time.AfterFunc(r.pause, func() { r.deliver(exited, false) })
	return true
}

// finish sees the command to its end, after the process's.
func (r *run) finish() {
	r.mu.Lock()
	if r.stopping != notStopped {
		r.signal(syscall.SIGKILL) // what is left of the group; its zombie leader still keeps the number from being used again
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	state, err := r.process.Wait()
	r.reaped = true
	stopping := r.stopping
	r.mu.Unlock()

	c := r.command
	exit := outcome(state, err, stopping, c.timeout)
	// A shell reports with this code, too, that a process of its own was killed.
	if stopping == notStopped && exit.Code != nil && *exit.Code == killedCode && r.kills.Claim(r.before) {
		exit.OOMKilled = true
		exit.Reason += ": memory ran out"
	}
	exit.At = c.clock()
	exit.Duration = exit.At.Sub(c.startedAt)
	for i := range r.outputs {
		r.outputs[i].finish()
	}
	r.command, r.process = nil, nil
	c.end(exit)
	r.ended(c)
}

// interrupt ends the process: SIGTERM to its group, and SIGKILL later.
func (r *run) interrupt() { r.stop(interrupted) }

func (r *run) stop(why reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping != notStopped || r.over() {
		return
	}
	r.stopping = why
	r.signal(syscall.SIGTERM)
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(r.killDelay, r.kill)
}

// killTimedOut ends the process group at once, because the timeout has elapsed.
func (r *run) killTimedOut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping != notStopped || r.over() {
		return
	}
	r.stopping, r.killed = timedOut, true
	r.signal(syscall.SIGKILL)
}

// kill ends the process group at once.
func (r *run) kill() {
	r.mu.Lock()
	over := r.over()
	if r.reaped || over && r.stopping == notStopped {
		r.mu.Unlock()
		return
	}
	if r.stopping == notStopped {
		r.stopping = interrupted
	}
	r.killed = true
	r.signal(syscall.SIGKILL)
	r.mu.Unlock()
	if over { // what was left of the group has delayed the end
		r.deliver(exited, false)
	}
}

// over reports whether the process has ended. The caller holds mu.
func (r *run) over() bool { return r.reaped || process.HasExited(r.pid) }

// signal signals the process group. The caller holds mu, and the process has not been waited for.
func (r *run) signal(signal syscall.Signal) {
	_ = process.SignalGroup(r.pid, signal) // ESRCH: no process is left
}

// signalProcess signals the process alone, and reports whether it was there.
func (r *run) signalProcess(signal syscall.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.over() && unix.Kill(r.pid, signal) == nil
}

// outcome reports how a process ended, without its times.
func outcome(state *os.ProcessState, err error, stopping reason, timeout time.Duration) Exit {
	var status syscall.WaitStatus
	if state != nil {
		status = state.Sys().(syscall.WaitStatus)
	}
	if stopping == timedOut {
		reason := fmt.Sprintf("the command ran into its timeout of %d ms", timeout.Milliseconds())
		return Exit{TimedOut: true, Wait: status, Reason: reason}
	}
	if state == nil {
		return Exit{Reason: fmt.Sprintf("the command's exit status is lost: %v", err)}
	}
	code := process.ExitCode(status)
	exit := Exit{Code: &code, Wait: status}
	switch {
	case status.Signaled():
		exit.Reason = fmt.Sprintf("the command was ended by signal %d (%s)", int(status.Signal()), status.Signal())
	case code != 0:
		exit.Reason = fmt.Sprintf("the command ended with exit code %d", code)
	}
	if stopping == interrupted && code != 0 {
		exit.Reason = "the command was interrupted"
	}
	return exit
}
