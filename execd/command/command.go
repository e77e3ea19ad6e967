package command

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/identity"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/internal/process"
)

// Spec is a command to run (execd document, "Commands").
type Spec struct {
	Command string            // a command line for the shell; unused with Argv
	Argv    []string          // a program and its arguments, which no shell reads; nil with a command line
	Dir     string            // working directory; empty means the manager's
	Env     map[string]string // added to the manager's
	UID     *uint32           // user to run as; nil means the daemon's own
	GID     *uint32           // group to run as; nil means the primary group of UID, or the daemon's own without a UID
	Timeout time.Duration     // 0 means none
	Abrupt  bool              // at the timeout the process group is killed at once; else SIGTERM comes first
	Input   bool              // WriteInput writes the standard input, which is empty otherwise
	// Ended is called once, with the status of a command that was started and has ended; nil means
	// not.
	Ended func(Status)
}

// Command is a command that runs or has ended.
//
// A thousand that have ended are kept, for as long as the daemon runs. Each small object of them
// would keep a page of memory from the system that was full of what their requests needed, so there
// are few objects: the command with its log, and its strings.
type Command struct {
	id        string
	content   string
	dir       string // where it was started
	pid       int    // of its process
	timeout   time.Duration
	abrupt    bool // see Spec
	startedAt time.Time
	log       eventlog.Log
	input     *input // nil when its standard input is empty
	clock     func() time.Time
	run       atomic.Pointer[run] // nil once the command has ended
	onEnd     func(Status)        // nil for none, and once it was called

	mu    sync.Mutex
	ended bool          // the terminal event is in the log
	exit  Exit          // valid then
	code  int           // what exit.Code points to
	done  chan struct{} // closed then; nil until Done is called
}

// Status is what is known of a command (execd document, "Command status").
type Status struct {
	ID       string
	Content  string
	Dir      string // where it was started
	PID      int    // of its process; 0 when it has ended
	Running  bool
	ExitCode *int // nil while it runs and after a timeout
	TimedOut bool // it ran into its timeout
	// Wait is the status of wait(2) of the process, also after a timeout; 0 while it runs.
	Wait       syscall.WaitStatus
	Error      string // why it failed; empty when it did not
	OOMKilled  bool   // it failed because memory ran out
	StartedAt  time.Time
	FinishedAt time.Time   // zero while it runs
	Input      *InputState // nil when its standard input is empty
}

// ID returns the command's id.
func (c *Command) ID() string { return c.id }

// PID returns the number of the command's process, which another process may have once the command
// has ended.
func (c *Command) PID() int { return c.pid }

// Done returns a channel that is closed when the command has ended and its terminal event can be
// read.
func (c *Command) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// Status returns what is known of the command now.
func (c *Command) Status() Status {
	status := Status{ID: c.id, Content: c.content, Dir: c.dir, Running: true, StartedAt: c.startedAt}
	c.mu.Lock()
	if c.ended {
		status.Running = false
		status.ExitCode, status.TimedOut, status.Wait = c.exit.Code, c.exit.TimedOut, c.exit.Wait
		status.Error = c.exit.Reason
		status.OOMKilled = c.exit.OOMKilled
		status.FinishedAt = c.exit.At
	} else if r := c.run.Load(); r != nil {
		status.PID = r.pid
	}
	c.mu.Unlock()
	if c.input != nil {
		input := c.input.state()
		status.Input = &input
	}
	return status
}

// Log returns what the command said, and says.
func (c *Command) Log() *eventlog.Log { return &c.log }

func (m *Manager) start(spec Spec) (*Command, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	prepared, err := m.prepare(spec)
	if err != nil {
		return nil, err
	}
	started, err := m.program(prepared, spec)
	if err != nil {
		return nil, err
	}
	defer started()
	p, err := m.watcher()
	if err != nil {
		return nil, err
	}
	id := uuid.NewString()
	content := spec.content()
	kept := id + content
	if prepared.Dir != m.options.Dir { // which all commands share
		kept += prepared.Dir
	}
	c := &Command{
		id:        kept[:len(id)],
		content:   kept[len(id) : len(id)+len(content)],
		dir:       cmp.Or(kept[len(id)+len(content):], m.options.Dir),
		timeout:   spec.Timeout,
		abrupt:    spec.Abrupt,
		startedAt: m.options.Clock(),
		clock:     m.options.Clock,
		onEnd:     spec.Ended,
	}
	c.log.Start(id, eventlog.Options{
		Limit: m.options.LogLimit, SpoolDir: m.options.SpoolDir, Memory: &m.memory, Beside: int64(len(kept) - len(id)),
		Clock: m.options.Clock,
	})
	if spec.Input {
		reader, err := c.openInput(prepared.SysProcAttr.Credential)
		if err != nil {
			return nil, err
		}
		defer reader.Close() // the process has its own
		prepared.Stdin = reader
	}
	hold := m.options.Holds.Begin(holds.Command, c.id)
	r, err := m.startRun(c, p, prepared)
	if err != nil {
		hold.End()
		if c.input != nil {
			c.input.close()
		}
		return nil, startError(spec, prepared.Path, err)
	}
	c.pid = r.pid
	r.hold = hold
	c.run.Store(r)
	return c, nil
}

// interrupt ends the command's process, if it runs: SIGTERM to its group, and SIGKILL later.
func (c *Command) interrupt() {
	if r := c.run.Load(); r != nil {
		r.interrupt()
	}
}

// kill ends the command's process at once, if it runs.
func (c *Command) kill() {
	if r := c.run.Load(); r != nil {
		r.kill()
	}
}

// Signal sends a signal to the command's process alone, not to its group, and reports whether the
// process was there to receive it.
func (c *Command) Signal(signal syscall.Signal) bool {
	r := c.run.Load()
	return r != nil && r.signalProcess(signal)
}

// prepare builds the process, but for its program: a session of its own, so that signals reach all
// of it and no terminal does.
func (m *Manager) prepare(spec Spec) (*exec.Cmd, error) {
	dir := process.WorkingDirectory(spec.Dir, m.options.Dir, m.env)
	if err := process.IsDirectory(dir); err != nil {
		return nil, invalid.Errorf("cwd: %v", err)
	}
	env := slices.Concat(m.env, []string{"PWD=" + dir})
	as, err := identity.Of(spec.UID, spec.GID)
	if errors.Is(err, identity.ErrTooManyGroups) {
		return nil, invalid.Errorf("uid: %v", err)
	}
	if err != nil {
		return nil, err
	}
	attributes := &syscall.SysProcAttr{Setsid: true, Credential: as.Credential}
	if env, err = process.AddVariables(append(env, as.Env...), spec.Env); err != nil {
		return nil, invalid.Errorf("envs: %v", err)
	}
	return &exec.Cmd{Dir: dir, Env: env, SysProcAttr: attributes}, nil
}

// program has the process run what the spec names. The caller calls done when the process is
// started.
func (m *Manager) program(prepared *exec.Cmd, spec Spec) (done func(), err error) {
	if spec.Argv == nil {
		return m.shell(prepared, spec.Command)
	}
	if prepared.Path = process.Find(spec.Argv[0], prepared.Dir, prepared.Env); prepared.Path == "" {
		return nil, invalid.Errorf("command: %.128q is no program that can be run", spec.Argv[0])
	}
	prepared.Args = spec.Argv
	return func() {}, nil
}

func startError(spec Spec, program string, err error) error {
	switch {
	case spec.Argv != nil && (errors.Is(err, syscall.ENOEXEC) || errors.Is(err, syscall.ENOENT)):
		return invalid.Errorf("command: %.128q is no program that the kernel can run: %v", spec.Argv[0], err)
	case errors.Is(err, syscall.EPERM):
		return invalid.Errorf("uid and gid: the daemon may not run commands as another user")
	case errors.Is(err, syscall.EINVAL) && (spec.UID != nil || spec.GID != nil):
		return invalid.Errorf("uid and gid: the sandbox's user namespace has no such user or group")
	case errors.Is(err, syscall.EACCES):
		return invalid.Errorf("cwd: the command's user may not enter it, or may not run %s", program)
	case errors.Is(err, syscall.E2BIG):
		if spec.Argv != nil {
			return invalid.Errorf("command, args and envs: too long for the kernel")
		}
		return invalid.Errorf("envs: too long for the kernel")
	}
	return fmt.Errorf("start %s: %w", program, err)
}

// end records how the command ended. It is the last thing that happens to it.
func (c *Command) end(exit Exit) {
	if c.input != nil {
		c.input.close()
	}
	// The status and the log end at once: who sees that the command has ended finds all of its
	// output, and who has read the terminal event finds the exit code.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exit = exit
	if exit.Code != nil {
		c.code = *exit.Code
		c.exit.Code = &c.code
	}
	c.log.Finish(exit.Type(), exit.detail())
	if r := c.run.Swap(nil); r != nil {
		r.hold.End()
	}
	c.ended = true
	if c.done != nil {
		close(c.done)
	}
}
