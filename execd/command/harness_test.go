package command_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) {
	if tracee := os.Getenv(traceeVariable); tracee != "" {
		os.Exit(trace(tracee))
	}
	goleak.VerifyTestMain(m)
}

func newManager(t *testing.T, change ...func(*command.Options)) *command.Manager {
	t.Helper()
	options := command.Options{Dir: t.TempDir(), Env: os.Environ(), LogLimit: 1 << 30, SpoolDir: t.TempDir(), Clock: time.Now}
	for _, f := range change {
		f(&options)
	}
	m := command.New(options)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
		defer cancel()
		m.Stop(ctx)
		m.Close()
	})
	return m
}

func start(t *testing.T, m *command.Manager, spec command.Spec) *command.Command {
	t.Helper()
	c, err := m.Start(spec)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Command, err)
	}
	return c
}

// event is an Event that owns its text.
type event struct {
	eventlog.Event
	text string
}

// follow reads events after an id until the stream's end or until stop says so. A stream that
// stalls fails the test.
func follow(t *testing.T, c *command.Command, after int64, stop func(event) bool) []event {
	t.Helper()
	r, err := c.Log().Reader(after)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	deadline := time.After(wait.Patience())
	var events []event
	for {
		e, ok, err := r.Next()
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			events = append(events, event{Event: e, text: string(e.Text)})
			if stop != nil && stop(events[len(events)-1]) {
				return events
			}
			continue
		}
		select {
		case <-r.Wait():
		case <-deadline:
			t.Fatalf("the stream stalled after %d events", len(events))
		}
	}
}

func all(t *testing.T, c *command.Command) []event { return follow(t, c, 0, nil) }

// rebuild puts the bytes of a stream together again, as docs/execd.md asks of a client.
func rebuild(events []event, stream eventlog.Type) string {
	var b strings.Builder
	for _, e := range events {
		if e.Type != stream {
			continue
		}
		b.WriteString(e.text)
		if !e.Partial {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func ended(e event) bool { return e.Type == eventlog.TypeComplete || e.Type == eventlog.TypeError }

func last(events []event) event { return events[len(events)-1] }

// awaitEnd waits until a command has ended.
func awaitEnd(t *testing.T, c *command.Command) {
	t.Helper()
	wait.For(t, "the end of the command", c.Done())
}

func digest(events []event) [32]byte {
	return sha256.Sum256([]byte(rebuild(events, eventlog.TypeStdout)))
}

// gone reports whether the process has ended; whoever inherited it may not have waited for it yet.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// descriptors is how many files this process has open.
// pipes returns how many ends of pipes this process has open.
func pipes(t *testing.T) (count int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		// That of the listing itself is closed by now.
		if target, _ := os.Readlink("/proc/self/fd/" + entry.Name()); strings.HasPrefix(target, "pipe:") {
			count++
		}
	}
	return count
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
