package supervisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/internal/supervisor"
	"sandbox.internal/test/wait"
)

// planVariable carries a plan to the child that plays init. Its name begins with EXECD_, so the
// entrypoint must not see it.
const planVariable = "EXECD_TEST_PLAN"

// TestMain also is the first process of the tests, a sandbox's and a sidecar's: the test binary
// runs itself, so that it is a real process.
func TestMain(m *testing.M) {
	if raw := os.Getenv(planVariable); raw != "" {
		supervisor.Exit("test-init", func() int { return runInit(raw) })
	}
	if os.Getenv(roleVariable) != "" {
		supervisor.Exit("test-init", func() int {
			return supervisor.Run(supervisor.Options{
				Name: "test-init", Program: os.Args[1:], Prefix: "TEST", LongestPause: time.Second, Meanwhile: "nothing happens",
				Deliver: os.Getenv(roleVariable) == roleDeliver,
			})
		})
	}
	goleak.VerifyTestMain(m)
}

// plan is what a test asks of an init; the zero value of a field means something harmless.
type plan struct {
	Entrypoint []string
	Daemon     []string
	Env        []string
	StopSignal syscall.Signal
	StopGrace  time.Duration
	Grace      time.Duration
	AwaitReady bool
	Idle       bool
}

func runInit(raw string) int {
	var p plan
	if err := json.Unmarshal([]byte(raw), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 255
	}
	return supervisor.Run(supervisor.Options{
		Name: "test-init", Program: p.Daemon, Prefix: supervisor.PrefixExecd, Entrypoint: p.Entrypoint, StopSignal: p.StopSignal, StopGrace: p.StopGrace, Grace: p.Grace, AwaitReady: p.AwaitReady, Idle: p.Idle, LongestPause: 5 * time.Second,
	})
}

func shell(script string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// sandbox is a running init with its entrypoint and daemon.
type sandbox struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *os.File
	lines  *bufio.Reader
	stderr string // path
	waited bool
}

// start runs an init as PID 1 of a namespace of its own. Options change the command before it
// starts.
func start(t *testing.T, p plan, options ...func(*exec.Cmd)) *sandbox {
	t.Helper()
	if p.Daemon == nil {
		p.Daemon = shell("exec sleep 1000")
	}
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), wait.Patience())
	t.Cleanup(cancel)
	s := &sandbox{t: t, cmd: exec.CommandContext(ctx, exe), stderr: filepath.Join(t.TempDir(), "stderr")}
	s.cmd.Env = append(append(os.Environ(), p.Env...), planVariable+"="+string(raw))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(s.stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	stdout, stdoutWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdoutWriter.Close()
	s.stdout, s.lines = stdout, bufio.NewReader(stdout)
	s.cmd.Stdout, s.cmd.Stderr = stdoutWriter, stderr
	for _, option := range options {
		option(s.cmd)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start init (the tests need root): %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if !s.waited {
			_ = s.cmd.Wait() // its own error is the kill above
		}
		_ = stdout.Close()
	})
	return s
}

// line returns the next line of the entrypoint's standard output.
func (s *sandbox) line() string {
	s.t.Helper()
	if err := s.stdout.SetReadDeadline(wait.Deadline()); err != nil {
		s.t.Fatal(err)
	}
	line, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Fatalf("no line from the entrypoint: %v; stderr: %s", err, s.errors())
	}
	return strings.TrimSpace(line)
}

func (s *sandbox) expect(want string) {
	s.t.Helper()
	if got := s.line(); got != want {
		s.t.Fatalf("entrypoint wrote %q, want %q", got, want)
	}
}

func (s *sandbox) say(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, text); err != nil {
		s.t.Fatal(err)
	}
}

// wait returns the exit code of init itself.
func (s *sandbox) wait() int {
	s.t.Helper()
	s.waited = true
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if code := s.cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	s.t.Fatalf("init did not exit by itself: %v; stderr: %s", s.cmd.ProcessState, s.errors())
	return -1
}

func (s *sandbox) errors() string {
	s.t.Helper()
	data, err := os.ReadFile(s.stderr)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// process is a line of the process table, with ids as the test sees them.
type process struct {
	pid, parent, session int
	state, command       string
}

// children returns what init has to care for, zombies included.
func (s *sandbox) children() []process {
	s.t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		s.t.Fatal(err)
	}
	var found []process
	for _, stat := range stats {
		data, err := os.ReadFile(stat)
		if err != nil {
			continue // it ended meanwhile
		}
		// "pid (name) state parent group session ...", where the name may contain anything.
		head, tail, _ := strings.Cut(string(data), " (")
		fields := strings.Fields(tail[strings.LastIndex(tail, ")")+1:])
		p := process{pid: number(s.t, head), state: fields[0], parent: number(s.t, fields[1]), session: number(s.t, fields[3])}
		if p.parent != s.cmd.Process.Pid {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		if err == nil {
			p.command = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
		}
		found = append(found, p)
	}
	return found
}

// child waits for the child with this command line.
func (s *sandbox) child(command string) process {
	s.t.Helper()
	var found process
	wait.Until(s.t, "a child "+command, func() bool {
		for _, p := range s.children() {
			if p.command == command {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}
