package jupyter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tailSize is how much of the end of what a kernel's process says is kept, in bytes.
const tailSize = 4 << 10

// outputWait is how long the output of a process that has ended is read on: what it wrote is in the
// pipe already, and another process that has left its group may hold the pipe open for ever.
const outputWait = 50 * time.Millisecond

// process is the process of a kernel. It leads a session and a process group of its own, and is
// killed when execd exits.
type process struct {
	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed when it has been waited for and its group has been killed

	mu     sync.Mutex
	reaped bool // its id may belong to another process by now
}

// startProcess starts a program. Both of its streams go to the tail. awaitExit is
// DirectOptions.AwaitExit.
func startProcess(argv, env []string, dir string, awaitExit func(pid int)) (*process, error) {
	program, err := lookProgram(argv[0], env)
	if err != nil {
		return nil, err
	}
	if dir != "" { // the error of the start would blame the program
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("working directory: %w", err)
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	if dir != "" {
		env = append(env, "PWD="+dir)
	}
	p := &process{
		cmd: &exec.Cmd{
			Path: program, Args: argv, Env: env, Dir: dir, Stdout: write, Stderr: write,
			// The signal comes when the thread that starts the process ends; Go ends no threads but
			// those that are locked, and none is locked here.
			SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
		},
		output: new(tail),
		exited: make(chan struct{}),
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	if awaitExit == nil {
		awaitExit = blockUntilExit
	}
	go p.wait(read, awaitExit)
	return p, nil
}

// wait reads what the process says, and takes it and what is left of its group away when it has
// ended.
func (p *process) wait(output *os.File, awaitExit func(pid int)) {
	defer close(p.exited)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(p.output, output) // ends with the pipe or at the deadline
	}()

	// While the process is a zombie, its group's id is not given to another.
	awaitExit(p.cmd.Process.Pid)
	p.signal(syscall.SIGKILL)
	p.mu.Lock()
	p.reaped = true
	_ = p.cmd.Wait() // how it ended is in ProcessState
	p.mu.Unlock()
	output.SetReadDeadline(time.Now().Add(outputWait))
	<-copied
	output.Close()
}

// blockUntilExit returns when a child process has ended, and leaves it to be waited for.
func blockUntilExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// signal sends a signal to the process and its children, as Jupyter does. A process that has ended
// gets none.
func (p *process) signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, signal) // ESRCH: the last of them has just ended
	}
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// outputTail is the end of the process's output, as the end of an error's message.
func (p *process) outputTail() string {
	if said := p.output.String(); said != "" {
		return "; it said at last: " + said
	}
	return ""
}

// lookProgram finds a program in the PATH of the environment that it will have. exec.LookPath takes
// the PATH of our own.
func lookProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(lookup(env, "PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); filepath.IsAbs(path) && err == nil &&
			info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: no such program in PATH", name)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-tailSize):]...)
	if excess := len(t.kept) - tailSize; excess > 0 {
		t.kept = append(t.kept[:0], t.kept[excess:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(bytes.TrimSpace(t.kept), nil))
}
