package clients_test

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
	"testing"
	"time"

	"github.com/creack/pty"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// commandLine runs the command line tool as people do: the program, with a service in its
// environment.
type commandLine struct {
	program   string
	directory string // where it runs
	env       []string
}

func newCommandLine(t *testing.T, url string) *commandLine {
	t.Helper()
	return &commandLine{
		program:   conformance.Build(t, "sandbox.internal/clients/cmd/sandbox"),
		directory: t.TempDir(),
		env: append(os.Environ(), "SANDBOX_URL="+url, "SERVICE_API_KEY="+conformance.AdminKey,
			"SANDBOX_CONTEXTS="+filepath.Join(t.TempDir(), "contexts.json"), "LC_ALL=C.UTF-8"),
	}
}

func (c *commandLine) command(t *testing.T, args ...string) *exec.Cmd {
	command := exec.CommandContext(t.Context(), c.program, args...)
	command.Dir, command.Env = c.directory, c.env
	return command
}

// outcome is what one invocation printed, and its exit code.
type outcome struct {
	code           int
	stdout, stderr string
}

func (c *commandLine) run(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	command := c.command(t, args...)
	var stdout, stderr bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &stdout, &stderr
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must returns what a successful invocation printed.
func (c *commandLine) must(t *testing.T, args ...string) string {
	t.Helper()
	got := c.run(t, "", args...)
	if got.code != 0 {
		t.Fatalf("sandbox %s: exit code %d\n%s%s", strings.Join(args, " "), got.code, got.stdout,
			got.stderr)
	}
	return got.stdout
}

// session is an invocation that goes on.
type session struct {
	*exec.Cmd
	input io.Writer

	mu     sync.Mutex
	output bytes.Buffer
	ended  chan struct{}
}

// Write keeps what the tool prints.
func (s *session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// begin starts an invocation without a terminal.
func (c *commandLine) begin(t *testing.T, command *exec.Cmd) *session {
	t.Helper()
	s := &session{Cmd: command, ended: make(chan struct{})}
	command.Stdout, command.Stderr = s, s
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = command.Wait() // its exit code is checked
		close(s.ended)
	}()
	t.Cleanup(func() { s.kill() })
	return s
}

// beginOnTerminal starts an invocation on a terminal with so many columns.
func (c *commandLine) beginOnTerminal(t *testing.T, columns uint16,
	command *exec.Cmd) (*session, *os.File) {
	t.Helper()
	s := &session{Cmd: command, ended: make(chan struct{})}
	terminal, err := pty.StartWithSize(command, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	s.input = terminal
	go func() {
		_, _ = io.Copy(s, terminal) // ends with an error when the program does
		_ = command.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.kill()
		_ = terminal.Close()
		if t.Failed() {
			t.Logf("the terminal had: %q", s.text())
		}
	})
	return s, terminal
}

func (s *session) kill() {
	_ = s.Process.Kill() // it may have ended
	<-s.ended
}

func (s *session) await(t *testing.T, text string) {
	t.Helper()
	s.awaitThat(t, fmt.Sprintf("%q", text), func(output string) bool {
		return strings.Contains(output, text)
	})
}

func (s *session) awaitThat(t *testing.T, what string, holds func(output string) bool) {
	t.Helper()
	wait.Until(t, "output: "+what, func() bool {
		if holds(s.text()) {
			return true
		}
		select {
		case <-s.ended:
			if !holds(s.text()) {
				t.Fatalf("the tool ended without %s:\n%s", what, s.text())
			}
			return true
		default:
			return false
		}
	})
}

func (s *session) send(t *testing.T, keys string) {
	t.Helper()
	if _, err := io.WriteString(s.input, keys); err != nil {
		t.Fatal(err)
	}
}

func (s *session) interrupt(t *testing.T) {
	t.Helper()
	if err := s.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// end waits for the end and checks the exit code.
func (s *session) end(t *testing.T, code int) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(wait.Patience()):
		t.Fatalf("the tool does not end:\n%s", s.text())
	}
	if got := s.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d:\n%s", got, code, s.text())
	}
}
