package clients_test

import (
	"bufio"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// prints is a program that prints its process id and then lines without an end.
const prints = "echo $$; while :; do echo x; sleep 0.1; done"

// read starts an invocation whose output is a pipe, and returns the first line of that.
func (c *commandLine) read(t *testing.T, args ...string) (s *session, output *os.File, line string) {
	t.Helper()
	output, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	command := c.command(t, args...)
	s = &session{Cmd: command, ended: make(chan struct{})}
	command.Stdout, command.Stderr = end, s
	err = command.Start()
	_ = end.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = command.Wait() // its exit code is checked
		close(s.ended)
	}()
	t.Cleanup(s.kill)
	if line, err = bufio.NewReaderSize(output, 16).ReadString('\n'); err != nil {
		t.Fatalf("%v: %s", err, s.text())
	}
	return s, output, strings.TrimSpace(line)
}

// TestLeaving: the tool cleans up also when its output is read no more, and when its terminal is
// closed.
func TestLeaving(t *testing.T) {
	t.Parallel()
	// Under nohup a SIGHUP is ignored, and the tool would inherit that; a handler is not inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	leave := map[string]struct {
		how  func(*session, *os.File) error
		code int
	}{
		"closed output": {func(_ *session, output *os.File) error { return output.Close() }, 141},
		"closed terminal": {func(s *session, _ *os.File) error {
			for range 3 { // the shell's, and those of the kernel
				if err := s.Process.Signal(syscall.SIGHUP); err != nil {
					return err
				}
			}
			return nil
		}, 130},
	}
	for name, test := range leave {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCommandLine(t, start(t, conformance.Plan{}).URL)
			s, output, _ := c.read(t, "run", "-q", busyboxImage, "--", "sh", "-c", prints)
			if err := test.how(s, output); err != nil {
				t.Fatal(err)
			}
			s.end(t, test.code)
			if got := c.must(t, "ls", "-q"); got != "" || s.text() != "" {
				t.Errorf("run leaves the sandbox %q, and printed %q", got, s.text())
			}

			c.must(t, "create", busyboxImage, "--name", "box", "-q")
			s, output, pid := c.read(t, "exec", "box", "sh", "-c", prints)
			if err := test.how(s, output); err != nil {
				t.Fatal(err)
			}
			s.end(t, test.code)
			wait.Until(t, "the program in the sandbox has ended", func() bool {
				return c.run(t, "", "exec", "box", "test", "!", "-e", "/proc/"+pid).code == 0
			})
			if s.text() != "" {
				t.Errorf("exec printed %q", s.text())
			}
		})
	}
}
