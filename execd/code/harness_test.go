package code_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newManager(t *testing.T, host *fakeHost, change ...func(*code.Options)) *code.Manager {
	t.Helper()
	options := code.Options{Host: host, LogLimit: 1 << 20, SpoolDir: t.TempDir(), Logger: zerolog.Nop(), Clock: time.Now}
	for _, apply := range change {
		apply(&options)
	}
	m := code.New(options)
	t.Cleanup(func() {
		m.Stop()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if left := host.living.Load(); left != 0 {
			t.Errorf("%d kernels are left", left)
		}
	})
	return m
}

func newContext(t *testing.T, m *code.Manager, language string) string {
	t.Helper()
	c, err := m.CreateContext(t.Context(), language)
	if err != nil {
		t.Fatal(err)
	}
	return c.ID
}

func execute(t *testing.T, m *code.Manager, spec code.Spec) *code.Execution {
	t.Helper()
	e, err := m.Execute(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// awaitEnd waits until a cell has ended.
func awaitEnd(t *testing.T, e *code.Execution) {
	t.Helper()
	wait.For(t, "the end of the cell", e.Done())
}

// outcomeOf returns a cell's events as words once it has ended, "type" or "type:text", and how it
// ended.
func outcomeOf(t *testing.T, e *code.Execution) (string, code.Outcome) {
	t.Helper()
	awaitEnd(t, e)
	r, err := e.Log().Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var words []string
	var outcome code.Outcome
	for {
		event, ok, err := r.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(words, " "), outcome
		}
		if err != nil || !ok {
			t.Fatal("the log of an ended cell has a gap", err)
		}
		word := string(event.Type)
		switch event.Type {
		case eventlog.TypeComplete, eventlog.TypeError:
			if outcome, err = code.ParseOutcome(event.Text); err != nil {
				t.Fatal(err)
			}
		case eventlog.TypeInit:
		default:
			word += ":" + string(event.Text)
		}
		words = append(words, word)
	}
}

// started waits until a cell that waits has begun.
func started(t *testing.T, e *code.Execution) {
	t.Helper()
	r, err := e.Log().Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for timeout := time.After(wait.Patience()); ; {
		event, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ok && event.Type == eventlog.TypeStdout {
			return
		}
		if !ok {
			select {
			case <-r.Wait():
			case <-timeout:
				t.Fatal("the cell did not begin")
			}
		}
	}
}

func gone(t *testing.T, m *code.Manager, id string) {
	t.Helper()
	var err error
	wait.Until(t, "the context is gone", func() bool {
		_, err = m.Context(id)
		return errors.Is(err, code.ErrNotFound)
	}, func() any { return err })
}
