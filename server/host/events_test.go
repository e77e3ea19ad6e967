package host_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// stored returns a summary of everything that was written to the store.
func (m *machine) stored(id string) string {
	m.t.Helper()
	page, err := m.store.Events(context.Background(), lifecycle.EventQuery{SandboxID: id, Limit: 10_000})
	if err != nil {
		m.t.Fatal(err)
	}
	return describe(page.Events)
}

func describe(events []lifecycle.Event) string {
	var words []string
	for _, e := range events {
		switch e.Type {
		case lifecycle.EventState:
			words = append(words, string(e.To))
		case lifecycle.EventStage:
			words = append(words, string(e.Stage))
		default:
			words = append(words, string(e.Type))
		}
	}
	return strings.Join(words, " ")
}

// follow opens a feed; the test's end closes it.
func (m *machine) follow(selection lifecycle.EventSelection) lifecycle.EventFeed {
	m.t.Helper()
	feed, err := m.host.Events(context.Background(), selection)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(feed.Close)
	return feed
}

// read returns the feed's events up to the first one that holds.
func (m *machine) read(feed lifecycle.EventFeed, last func(lifecycle.Event) bool) []lifecycle.Event {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	var seen []lifecycle.Event
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			m.t.Fatalf("%v after %s", err, describe(seen))
		}
		seen = append(seen, batch.Events...)
		if slices.ContainsFunc(batch.Events, last) {
			return seen
		}
	}
}

func to(state lifecycle.State) func(lifecycle.Event) bool {
	return func(e lifecycle.Event) bool { return e.To == state }
}

func TestFeedOfALife(t *testing.T) {
	m := newMachine(t).start()
	id := m.create()
	feed := m.follow(lifecycle.EventSelection{SandboxID: id})
	seen := m.read(feed, to(lifecycle.StateRunning))
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	seen = append(seen, m.read(feed, to(lifecycle.StateTerminated))...)
	m.clock.advance(2 * time.Hour)
	m.host.Close() // the time for forgetting comes with the next start
	m.start()
	m.awaitForgotten(id)
	const want = "Pending accepted progress pulled created started ready Running Stopping Terminated"
	if got := describe(seen); got != want {
		t.Errorf("got:   %s\nwant:  %s", got, want)
	}
	if got := m.stored(id); got != want+" forgotten" {
		t.Errorf("stored: %s", got)
	}
	if _, err := m.host.Events(t.Context(), lifecycle.EventSelection{SandboxID: id}); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("events of a forgotten sandbox: %v", err)
	}
}

func TestFeedEndsWithItsSandbox(t *testing.T) {
	m := newMachine(t)
	m.options.TerminatedRetention = 0
	m.start()
	id := m.running()
	feed := m.follow(lifecycle.EventSelection{SandboxID: id})
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.read(feed, func(e lifecycle.Event) bool { return e.Type == lifecycle.EventForgotten })
	if _, err := feed.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the last event: %v", err)
	}
}

func TestFeedEndsWithTheHost(t *testing.T) {
	m := newMachine(t).start()
	feed := m.follow(lifecycle.EventSelection{})
	if batch, err := feed.Next(t.Context()); err != nil || len(batch.Events) > 0 || batch.Cursor == 0 {
		t.Errorf("the first batch of a feed that begins now: %+v, %v", batch, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := feed.Next(context.Background())
		ended <- err
	}()
	m.host.Close()
	if err := wait.For(t, "the end of the feed", ended); kindOf(err) != lifecycle.KindUnavailable {
		t.Errorf("the end: %v", err)
	}
}

// Feeds without a reader, or without a notification, delay no writer and lose no event.
func TestFeedAtItsOwnPace(t *testing.T) {
	m := newMachine(t).start()
	id, other := m.running(), m.running()
	slow, foreign := m.follow(lifecycle.EventSelection{SandboxID: id}), m.follow(lifecycle.EventSelection{SandboxID: other})
	nobody := "nobody"
	scoped := m.follow(lifecycle.EventSelection{Owner: &nobody})
	const changes = 600 // more than two pages
	for i := range changes {
		value := strings.Repeat("x", i)
		if _, err := m.host.UpdateMetadata(t.Context(), id, map[string]*string{"n": &value}); err != nil {
			t.Fatal(err)
		}
	}
	count := 0
	for _, e := range m.read(slow, func(e lifecycle.Event) bool { return len(e.Metadata["n"]) == changes-1 }) {
		if e.Type == lifecycle.EventMetadata {
			if len(e.Metadata["n"]) != count {
				t.Fatalf("change %d is reported where %d should be", len(e.Metadata["n"]), count)
			}
			count++
		}
	}
	if count != changes {
		t.Errorf("%d of %d changes were reported", count, changes)
	}
	for name, feed := range map[string]lifecycle.EventFeed{"another sandbox": foreign, "another owner": scoped} {
		batch, err := feed.Next(t.Context())
		if err != nil || slices.ContainsFunc(batch.Events, func(e lifecycle.Event) bool { return e.SandboxID == id }) {
			t.Errorf("%s: %s, %v", name, describe(batch.Events), err)
		}
	}
}

func TestFeedReset(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	behind := m.follow(lifecycle.EventSelection{SandboxID: id})
	start, err := behind.Next(t.Context())
	if err != nil || len(start.Events) == 0 {
		t.Fatal(start, err)
	}
	if err := m.host.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := m.host.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateRunning)
	if err := m.store.TrimEvents(t.Context(), 1, time.Time{}); err != nil {
		t.Fatal(err)
	}
	future, past, begin := int64(1)<<60, start.Events[0].Sequence, int64(0)
	for name, c := range map[string]struct {
		feed  lifecycle.EventFeed
		reset bool
		rest  string
	}{
		"one that fell behind":        {behind, true, "Running"},
		"after a forgotten event":     {m.follow(lifecycle.EventSelection{SandboxID: id, After: &past}), true, "Running"},
		"after an event of elsewhere": {m.follow(lifecycle.EventSelection{After: &future}), true, ""},
		"everything that is kept":     {m.follow(lifecycle.EventSelection{After: &begin}), false, "Running"},
		"from the first that is kept": {m.follow(lifecycle.EventSelection{SandboxID: id}), false, "Running"},
	} {
		t.Run(name, func(t *testing.T) {
			batch, err := c.feed.Next(t.Context())
			if err != nil || batch.Reset != c.reset || batch.Reset && len(batch.Events) > 0 {
				t.Fatalf("first %+v, %v", batch, err)
			}
			if c.reset && c.rest != "" {
				if batch, err = c.feed.Next(t.Context()); err != nil || batch.Reset {
					t.Fatalf("then %+v, %v", batch, err)
				}
			}
			if got := describe(batch.Events); got != c.rest {
				t.Errorf("events: %q, want %q", got, c.rest)
			}
		})
	}
}

// While the store fails, changes are visible and have no events; once it works again, changes and
// events are durable, in order.
func TestEventsWaitForTheStore(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	feed := m.follow(lifecycle.EventSelection{})
	if _, err := feed.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := m.stored(id)
	m.store.fail(callSave, errDisk)
	m.engine.exit(container(id), 1, false)
	m.await(id, lifecycle.StateFailed)
	if got := m.stored(id); got != before {
		t.Errorf("stored while the disk is gone: %s", got)
	}
	m.store.fail(callSave, nil)
	if got := describe(m.read(feed, to(lifecycle.StateFailed))); got != "Failed" {
		t.Errorf("got: %s", got)
	}
	records, err := m.store.Load(t.Context())
	if err != nil || len(records) != 1 || records[0].Sandbox.Status.State != lifecycle.StateFailed {
		t.Errorf("records %+v, %v", records, err)
	}
}

// Progress is shown with every step, and becomes an event now and then.
func TestProgressEvents(t *testing.T) {
	m := newMachine(t)
	pull := newGate()
	m.box.Engine = chattyEngine{m.box.Engine, pull}
	m.start()
	id := m.create()
	pull.await(t)
	wait.Until(t, "the last step is in the status", func() bool { return m.get(id).Status.Message == "step 1000" }, func() any { return m.get(id).Status })
	if got := m.stored(id); got != "Pending accepted progress" {
		t.Errorf("stored: %s", got)
	}
	close(pull.open)
	m.await(id, lifecycle.StateRunning)
}

// chattyEngine pulls with a thousand steps, and then waits at the gate.
type chattyEngine struct {
	engine.Engine
	gate *gate
}

func (e chattyEngine) EnsureImage(ctx context.Context, ref string, auth *engine.RegistryAuth, progress func(string)) (string, error) {
	if progress != nil {
		for i := range 1000 {
			progress("step " + itoa(i+1))
		}
		if err := e.gate.fault(ctx, ref); err != nil {
			return "", err
		}
	}
	return e.Engine.EnsureImage(ctx, ref, auth, nil)
}

func TestStagesOfACreation(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	sandbox := m.get(id)
	if len(sandbox.Stages) != 5 {
		t.Fatalf("stages: %+v", sandbox.Stages)
	}
	for i, stage := range []lifecycle.Stage{lifecycle.StageAccepted, lifecycle.StagePulled, lifecycle.StageCreated, lifecycle.StageStarted, lifecycle.StageReady} {
		if sandbox.Stages[i].Stage != stage || i > 0 && sandbox.Stages[i].At.Before(sandbox.Stages[i-1].At) {
			t.Errorf("stage %d: %+v", i, sandbox.Stages)
		}
	}
	// A client that waits for Running gets them all.
	settled, err := m.host.AwaitStable(t.Context(), m.create(), time.Minute)
	if err != nil || settled.Status.State != lifecycle.StateRunning || len(settled.Stages) != 5 {
		t.Errorf("settled: %+v, %v", settled, err)
	}
}

func TestOldEventsAreForgotten(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.host.Sweep()
	before := m.stored(id)
	if !strings.HasSuffix(before, "Running") {
		t.Errorf("stored after a sweep: %s", before)
	}
	m.clock.advance(8 * 24 * time.Hour)
	m.host.Sweep()
	if got := m.stored(id); strings.Contains(got, "accepted") {
		t.Errorf("stored after eight days: %s", got)
	}
}

// A service that was killed between two stages continues with the rest and reports no stage twice.
func TestStagesOverARestart(t *testing.T) {
	m := newMachine(t).start()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
		if ref == "execd" {
			return nil
		}
		return pull.fault(ctx, ref)
	})
	id := m.create()
	pull.await(t)
	m.host.Close()
	close(pull.open)
	m.start()
	m.await(id, lifecycle.StateRunning)
	if got := strings.ReplaceAll(m.stored(id), "progress ", ""); got != "Pending accepted pulled created started ready Running" {
		t.Errorf("stored: %s", got)
	}
}

// A feed reads large events a few at a time, and an event has what changed and nothing else.
func TestFeedOfLargeMetadata(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	feed := m.follow(lifecycle.EventSelection{SandboxID: id})
	large := map[string]*string{}
	for i := range 200 {
		value := strings.Repeat("x", 4000)
		large["key"+itoa(i)] = &value
	}
	change := func(patch map[string]*string) {
		t.Helper()
		if _, err := m.host.UpdateMetadata(t.Context(), id, patch); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		change(large)
		change(map[string]*string{"key0": nil, "absent": nil})
	}
	last := "last"
	change(map[string]*string{"key1": &last})
	var changes []lifecycle.Event
	for len(changes) == 0 || changes[len(changes)-1].Metadata["key1"] != last {
		batch, err := feed.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, e := range batch.Events {
			for key, value := range e.Metadata {
				bytes += len(key) + len(value)
			}
			if e.Type == lifecycle.EventMetadata {
				changes = append(changes, e)
			}
		}
		if bytes > 1<<20+256<<10 {
			t.Errorf("a batch has %d bytes of metadata", bytes)
		}
	}
	for i, e := range changes {
		switch {
		case i == 0 && len(e.Metadata) == 200 && e.Removed == nil:
		case i == 10 && len(e.Metadata) == 1 && e.Metadata["key1"] == last && e.Removed == nil:
		case i%2 == 1 && e.Metadata == nil && slices.Equal(e.Removed, []string{"key0"}):
		case i > 0 && i%2 == 0 && len(e.Metadata) == 1 && len(e.Metadata["key0"]) == 4000 && e.Removed == nil:
		default:
			t.Errorf("change %d of %d sets %d keys and removes %q", i, len(changes), len(e.Metadata), e.Removed)
		}
	}
}
