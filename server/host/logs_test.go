package host_test

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func itoa(i int) string { return strconv.Itoa(i) }

// log returns the sandbox's log, and whether it was opened.
func (m *machine) log(id string, options lifecycle.LogOptions) (text string, opened int, err error) {
	var out bytes.Buffer
	err = m.host.Logs(context.Background(), id, options, func() io.Writer { opened++; return &out })
	return out.String(), opened, err
}

func (m *machine) wantLog(id string, options lifecycle.LogOptions, want string) {
	m.t.Helper()
	if got, opened, err := m.log(id, options); err != nil || got != want || opened != 1 {
		m.t.Errorf("log %q, opened %d times, %v; want %q", got, opened, err, want)
	}
}

func TestLogsOutliveTheContainer(t *testing.T) {
	m := newMachine(t).start()
	m.engine.logs = strings.Repeat("x", 70<<10) + "\nlast but one\n\xffthe end"
	id := m.running()
	m.wantLog(id, lifecycle.LogOptions{}, m.engine.logs)
	m.wantLog(id, lifecycle.LogOptions{Follow: true}, m.engine.logs)
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	kept := m.engine.logs[len(m.engine.logs)-64<<10:]
	m.wantLog(id, lifecycle.LogOptions{}, kept)
	m.wantLog(id, lifecycle.LogOptions{Follow: true, Since: time.Now()}, kept)
	for tail, want := range map[int]string{0: "", 1: "\xffthe end", 2: "last but one\n\xffthe end", 1000: kept} {
		m.wantLog(id, lifecycle.LogOptions{Tail: &tail}, want)
	}
	m.host.Close()
	m.start()
	m.wantLog(id, lifecycle.LogOptions{}, kept)
}

// TestFollowedLogsEndOnce: at the end comes what Docker leaves out, and neither what was sent
// before nor what the client left out.
func TestFollowedLogsEndOnce(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	none, one := 0, 1
	for name, c := range map[string]struct {
		log     string
		options lifecycle.LogOptions
		want    string
	}{
		"a last line without newline":     {"first\nprompt> ", lifecycle.LogOptions{}, "first\nprompt> "},
		"nothing else":                    {"prompt> ", lifecycle.LogOptions{Tail: &one}, "prompt> "},
		"a long line":                     {"first\n" + strings.Repeat("x", 100<<10) + "\n", lifecycle.LogOptions{}, "first\n" + strings.Repeat("x", 100<<10) + "\n"},
		"a line of the limit":             {strings.Repeat("x", 64<<10) + "\n", lifecycle.LogOptions{}, strings.Repeat("x", 64<<10) + "\n"},
		"a line of the limit, unfinished": {strings.Repeat("x", 64<<10), lifecycle.LogOptions{}, strings.Repeat("x", 64<<10)},
		"only what is new":                {"prompt> ", lifecycle.LogOptions{Tail: &none}, ""},
		"only what is since now":          {"prompt> ", lifecycle.LogOptions{Since: time.Now()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m.engine.mu.Lock()
			m.engine.logs = c.log
			m.engine.mu.Unlock()
			c.options.Follow = true
			if got, _, err := m.log(id, c.options); err != nil || got != c.want {
				t.Errorf("%d bytes that begin with %.20q, %v; want %d that begin with %.20q", len(got), got, err, len(c.want), c.want)
			}
		})
	}
}

func TestLogsOfWhatNeverRan(t *testing.T) {
	m := newMachine(t).start()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, pull.fault)
	id := m.create()
	pull.await(t)
	m.wantLog(id, lifecycle.LogOptions{}, "")
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	close(pull.open)
	m.await(id, lifecycle.StateTerminated)
	m.wantLog(id, lifecycle.LogOptions{}, "")
}

func TestLogsThatAreLost(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.happen(container(id), engine.EventRemoved, nil)
	m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonRemovedExternally)
	if _, opened, err := m.log(id, lifecycle.LogOptions{}); kindOf(err) != lifecycle.KindConflict || opened != 0 {
		t.Errorf("opened %d times, %v", opened, err)
	}
	if _, _, err := m.log("unknown", lifecycle.LogOptions{}); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("of no sandbox: %v", err)
	}
}

func TestLogsAreFollowedFromBeforeTheStart(t *testing.T) {
	m := newMachine(t).start()
	m.engine.logs = "hello\n"
	pull := newGate()
	m.engine.failBefore(callEnsureImage, pull.fault)
	id := m.create()
	pull.await(t)
	opened, done := make(chan struct{}), make(chan error, 1)
	var out bytes.Buffer
	go func() {
		done <- m.host.Logs(context.Background(), id, lifecycle.LogOptions{Follow: true}, func() io.Writer { close(opened); return &out })
	}()
	wait.For(t, "the begin of the answer", opened) // although nothing runs yet
	close(pull.open)
	if err := wait.For(t, "the end of the logs", done); err != nil || out.String() != "hello\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestLogsWithoutAnEngine(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.failBefore(callOpenLog, func(context.Context, string) error { return engine.ErrUnavailable })
	if _, opened, err := m.log(id, lifecycle.LogOptions{}); kindOf(err) != lifecycle.KindUnavailable || opened != 0 {
		t.Errorf("opened %d times, %v", opened, err)
	}
	// No client waits for a log that cannot be had.
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
}
