package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/execd/terminal"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) {
	// Under nohup a SIGHUP is ignored, and what is started here would inherit that; a handler is
	// not inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	goleak.VerifyTestMain(m)
}

func newManager(t *testing.T, env ...string) *terminal.Manager {
	t.Helper()
	m := terminal.New(terminal.Options{Dir: t.TempDir(), Env: append(os.Environ(), env...), Clock: time.Now})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
		defer cancel()
		m.Stop(ctx)
	})
	return m
}

func start(t *testing.T, m *terminal.Manager, spec terminal.Spec) *terminal.Terminal {
	t.Helper()
	started, err := m.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// sh is a terminal that runs a script without a prompt and without echo.
func sh(script string) terminal.Spec {
	return terminal.Spec{Command: "sh", Args: []string{"-c", "stty -echo; " + script}}
}

// screen collects what a viewer sees.
type screen struct {
	t       *testing.T
	viewer  *terminal.Viewer
	text    []byte // since the last replay began
	replays int
}

func attach(t *testing.T, to *terminal.Terminal) *screen {
	t.Helper()
	s := &screen{t: t, viewer: to.Attach()}
	t.Cleanup(s.viewer.Close)
	return s
}

// next takes one output; io.EOF is the end.
func (s *screen) next() error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), wait.Patience())
	defer cancel()
	output, err := s.viewer.Next(ctx)
	if err != nil {
		return err
	}
	if output.Replay {
		s.replays++
		s.text = nil
	}
	s.text = append(s.text, output.Data...)
	return nil
}

// until reads until the screen shows a text.
func (s *screen) until(text string) {
	s.t.Helper()
	for !bytes.Contains(s.text, []byte(text)) {
		if err := s.next(); err != nil {
			s.t.Fatalf("%q does not come: %v; the screen shows %q", text, err, tail(s.text))
		}
	}
}

// end reads to the end.
func (s *screen) end() {
	s.t.Helper()
	for {
		err := s.next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			s.t.Fatalf("no end: %v; the screen shows %q", err, tail(s.text))
		}
	}
}

func tail(text []byte) []byte { return text[max(0, len(text)-500):] }

func enter(t *testing.T, to *terminal.Terminal, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	if err := to.Type(ctx, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func exitCode(t *testing.T, of *terminal.Terminal) int {
	t.Helper()
	wait.For(t, "the end of the terminal", of.Done())
	status := of.Status()
	if status.Running || status.ExitCode == nil {
		t.Fatalf("the terminal ended, and its status is %+v", status)
	}
	return *status.ExitCode
}

// line returns what a terminal shows for lines of output.
func line(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }
