package host_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// files is a request for a snapshot without anything that can be left out.
func files() lifecycle.SnapshotRequest {
	return lifecycle.SnapshotRequest{Kind: lifecycle.SnapshotFilesystem}
}

func engineName(id string) string { return "sandbox-snapshot-" + id }

// take asks for a snapshot and returns its id.
func (m *machine) take(sandbox string, request lifecycle.SnapshotRequest) string {
	m.t.Helper()
	snapshot, err := m.host.TakeSnapshot(context.Background(), sandbox, request)
	if err != nil {
		m.t.Fatal(err)
	}
	if snapshot.Status.State != lifecycle.SnapshotCreating || snapshot.SandboxID != sandbox {
		m.t.Errorf("a new snapshot is %+v", snapshot)
	}
	return snapshot.ID
}

// keep takes a snapshot and returns it when it is Ready.
func (m *machine) keep(sandbox string) lifecycle.Snapshot {
	m.t.Helper()
	return m.awaitSnapshot(m.take(sandbox, files()), lifecycle.SnapshotReady)
}

func (m *machine) snapshot(id string) lifecycle.Snapshot {
	m.t.Helper()
	snapshot, err := m.host.Snapshot(context.Background(), id)
	if err != nil {
		m.t.Fatal(err)
	}
	return snapshot
}

func (m *machine) awaitSnapshot(id string, state lifecycle.SnapshotState) lifecycle.Snapshot {
	m.t.Helper()
	var last lifecycle.Snapshot
	wait.Until(m.t, fmt.Sprintf("snapshot %s is %s", id, state), func() bool {
		last = m.snapshot(id)
		return last.Status.State == state
	}, func() any { return last })
	return last
}

// awaitRemoval waits until nothing of a snapshot is left.
func (m *machine) awaitRemoval(id string) {
	m.t.Helper()
	wait.Until(m.t, "snapshot "+id+" is forgotten", func() bool {
		_, err := m.host.Snapshot(context.Background(), id)
		return kindOf(err) == lifecycle.KindNoSnapshot
	}, func() any { return m.engine.snapshotNames() })
	if slices.Contains(m.engine.snapshotNames(), engineName(id)) {
		m.t.Errorf("the engine still has snapshot %s", id)
	}
	stored, err := m.store.LoadSnapshots(context.Background())
	if err != nil || slices.ContainsFunc(stored, func(s lifecycle.Snapshot) bool { return s.ID == id }) {
		m.t.Errorf("the store has %v (%v)", stored, err)
	}
}

// statesOf returns the states of a snapshot in the events of its sandbox.
func (m *machine) statesOf(sandbox, snapshot string) (states []lifecycle.SnapshotState) {
	m.t.Helper()
	page, err := m.store.Events(context.Background(), lifecycle.EventQuery{SandboxID: sandbox, Limit: 100})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, event := range page.Events {
		if event.Type == lifecycle.EventSnapshot && event.SnapshotID == snapshot {
			states = append(states, event.SnapshotState)
		}
	}
	return states
}

// TestSnapshot: it becomes Ready with what the engine knows of it, has the one before as its
// parent, and outlives its sandbox.
func TestSnapshot(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), "some bytes")
	request := files()
	request.Name, request.Comment = "name", "comment"
	first := m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	if first.Size != 10 || first.ExclusiveSize != 10 || first.Frozen == 0 || first.EngineImage != "sha256:busybox" || first.Image != "busybox" ||
		first.ParentID != "" || first.Name != "name" || first.Comment != "comment" || !slices.Equal(first.Origin.Entrypoint, []string{"sleep", "60"}) {
		t.Errorf("the snapshot is %+v", first)
	}
	second := m.keep(id)
	if second.ParentID != first.ID || m.host.RecordOf(id).LastSnapshot != second.ID {
		t.Errorf("the parent is %q and the sandbox's last snapshot %q; want %q and %q", second.ParentID, m.host.RecordOf(id).LastSnapshot, first.ID, second.ID)
	}
	if got := m.get(id).Status; got.State != lifecycle.StateRunning || got.Reason != lifecycle.ReasonContainerRunning {
		t.Errorf("the sandbox is %+v", got)
	}
	if err := m.host.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StatePaused)
	third := m.keep(id)
	if got := m.get(id).Status; got.State != lifecycle.StatePaused {
		t.Errorf("the paused sandbox is %+v", got)
	}
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	if _, err := m.host.TakeSnapshot(t.Context(), id, files()); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a snapshot of an ended sandbox: %v", err)
	}
	m.host.Close()
	m.start()
	listing, err := m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{SandboxID: id}, lifecycle.Page{Number: 1, Size: 2})
	if err != nil || listing.Total != 3 || len(listing.Items) != 2 || listing.Items[0].ID != third.ID || listing.Items[1].ID != second.ID {
		t.Errorf("the first page is %+v (%v)", listing, err)
	}
	listing, err = m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{SandboxID: id}, lifecycle.Page{Number: 2, Size: 2})
	if err != nil || listing.Total != 3 || len(listing.Items) != 1 || listing.Items[0].ID != first.ID {
		t.Errorf("the second page is %+v (%v)", listing, err)
	}
	for _, snapshot := range []lifecycle.Snapshot{first, second, third} {
		if err := m.host.DeleteSnapshot(t.Context(), snapshot.ID); err != nil {
			t.Fatal(err)
		}
		m.awaitRemoval(snapshot.ID)
		if err := m.host.DeleteSnapshot(t.Context(), snapshot.ID); kindOf(err) != lifecycle.KindNoSnapshot {
			t.Errorf("a second deletion: %v", err)
		}
	}
}

// TestEventsOfSnapshots: each state of a snapshot is an event of its sandbox.
func TestEventsOfSnapshots(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	kept := m.keep(id)
	if err := m.host.DeleteSnapshot(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(kept.ID)
	states := m.statesOf(id, kept.ID)
	if want := []lifecycle.SnapshotState{lifecycle.SnapshotCreating, lifecycle.SnapshotReady, lifecycle.SnapshotDeleting}; !slices.Equal(states, want) {
		t.Errorf("the events have %v, want %v", states, want)
	}
}

// TestSnapshotThatFails: it says why, leaves its sandbox alone, and is forgotten after a while.
func TestSnapshotThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		reason lifecycle.Reason
	}{
		"refused":     {fmt.Errorf("%w: a socket", engine.ErrInvalid), lifecycle.ReasonSnapshotFailed},
		"too large":   {engine.ErrSnapshotTooLarge, lifecycle.ReasonSnapshotTooLarge},
		"full disk":   {engine.ErrNoRoom, lifecycle.ReasonNoRoom},
		"busy":        {engine.ErrBusy, lifecycle.ReasonSandboxBusy},
		"unknown":     {errRefused, lifecycle.ReasonSnapshotFailed},
		"not running": {engine.ErrNotRunning, lifecycle.ReasonSandboxEnded},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			id := m.running()
			m.engine.failBefore(callTakeSnapshot, times(1, test.err))
			failed := m.awaitSnapshot(m.take(id, files()), lifecycle.SnapshotFailed)
			if failed.Status.Reason != test.reason || failed.Status.Message == "" {
				t.Errorf("the snapshot is %+v, want %s", failed.Status, test.reason)
			}
			if got := m.get(id).Status.State; got != lifecycle.StateRunning {
				t.Errorf("the sandbox is %s", got)
			}
			if next := m.keep(id); next.ParentID != "" {
				t.Errorf("the parent of the next one is %q", next.ParentID)
			}
			m.clock.advance(m.options.TerminatedRetention)
			m.host.Sweep()
			m.awaitRemoval(failed.ID)
		})
	}
}

// TestSnapshotWaitsForTheEngine: one that does not answer is asked again, but not for ever.
func TestSnapshotWaitsForTheEngine(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	away := fmt.Errorf("%w: connection refused", engine.ErrUnavailable)
	m.engine.failBefore(callTakeSnapshot, times(2, away))
	m.keep(id)
	m.engine.failBefore(callTakeSnapshot, func(context.Context, string) error {
		m.clock.advance(time.Minute)
		return away
	})
	failed := m.awaitSnapshot(m.take(id, files()), lifecycle.SnapshotFailed)
	if failed.Status.Reason != lifecycle.ReasonEngineUnavailable {
		t.Errorf("the snapshot is %+v", failed.Status)
	}
}

// TestSnapshotsInTheOrderOfTheirRequests: those of one sandbox are taken one after the other, and
// two at once of all.
func TestSnapshotsInTheOrderOfTheirRequests(t *testing.T) {
	m := newMachine(t).start()
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	ids := []string{m.running(), m.running(), m.running()}
	var first []string
	for _, id := range ids {
		first = append(first, m.take(id, files()))
	}
	second := m.take(ids[0], files())
	hold.await(t)
	hold.await(t)
	select {
	case name := <-hold.entered:
		t.Errorf("%s is a third one at once", name)
	default:
	}
	close(hold.open)
	for _, id := range append(first, second) {
		m.awaitSnapshot(id, lifecycle.SnapshotReady)
	}
	if got := m.snapshot(second); got.ParentID != first[0] {
		t.Errorf("the parent of the second is %q, want %q", got.ParentID, first[0])
	}
}

// TestOwnersOfSnapshotsTakeTurns: the many snapshots of one do not hold up another's.
func TestOwnersOfSnapshotsTakeTurns(t *testing.T) {
	m := newMachine(t).start()
	entered, next := make(chan string, 10), make(chan struct{}, 1)
	m.engine.failBefore(callTakeSnapshot, func(ctx context.Context, name string) error {
		entered <- name
		select {
		case <-next:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	ask := func(owner string, waiting int) string {
		request := files()
		request.Owner = owner
		id := m.take(m.running(), request)
		wait.Until(t, "the snapshot waits", func() bool { return m.host.WaitingSnapshots() == waiting }, func() any { return m.host.WaitingSnapshots() })
		return id
	}
	ids := []string{ask("one", 0), ask("one", 0)}
	wait.For(t, "the first snapshot", entered)
	wait.For(t, "the second snapshot", entered)
	ids = append(ids, ask("one", 1), ask("one", 2))
	another := ask("two", 3)
	next <- struct{}{}
	if got := wait.For(t, "the next snapshot", entered); got != engineName(another) {
		t.Errorf("the next one is %s, want %s", got, engineName(another))
	}
	close(next)
	for _, id := range append(ids, another) {
		m.awaitSnapshot(id, lifecycle.SnapshotReady)
	}
}

// TestSnapshotsThatWaitForTheEngine hold up no others.
func TestSnapshotsThatWaitForTheEngine(t *testing.T) {
	m := newMachine(t)
	now := time.Now()
	m.options.Clock = func() time.Time { return now } // they wait for ever
	m.start()
	var answered atomic.Value
	answered.Store("")
	m.engine.failBefore(callTakeSnapshot, func(_ context.Context, name string) error {
		if has := answered.Load(); has == "all" || has == name {
			return nil
		}
		return fmt.Errorf("%w: connection refused", engine.ErrUnavailable)
	})
	waiting := []string{m.take(m.running(), files()), m.take(m.running(), files())}
	wait.Until(t, "the engine is asked", func() bool { return m.engine.count(callTakeSnapshot) >= 2 })
	other := m.take(m.running(), files())
	answered.Store(engineName(other))
	m.awaitSnapshot(other, lifecycle.SnapshotReady)
	for _, id := range waiting {
		if got := m.snapshot(id).Status; got.State != lifecycle.SnapshotCreating {
			t.Errorf("a waiting snapshot is %+v", got)
		}
	}
	answered.Store("all")
	for _, id := range waiting {
		m.awaitSnapshot(id, lifecycle.SnapshotReady)
	}
}

// TestDeleteEndsSnapshots: a sandbox that is deleted does not wait for the snapshots of it.
func TestDeleteEndsSnapshots(t *testing.T) {
	m := newMachine(t).start()
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	id := m.running()
	snapshots := []string{m.take(id, files()), m.take(id, files())}
	hold.await(t)
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// the gate never opens
	m.await(id, lifecycle.StateTerminated)
	for _, snapshot := range snapshots {
		if got := m.awaitSnapshot(snapshot, lifecycle.SnapshotFailed).Status; got.Reason != lifecycle.ReasonSandboxEnded {
			t.Errorf("the snapshot is %+v", got)
		}
	}
}

// TestDeleteWhileTheEngineGoesOn: a sandbox is Stopping at once although its engine goes on with
// the snapshot of it and removes no container meanwhile, as a Docker Engine does.
func TestDeleteWhileTheEngineGoesOn(t *testing.T) {
	m := newMachine(t).start()
	commit, removal := newGate(), newGate()
	m.engine.failBefore(callTakeSnapshot, commit.fault)
	m.engine.failBefore(callRemove, removal.fault)
	id := m.running()
	snapshot := m.take(id, files())
	commit.await(t)
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	removal.await(t)
	if got := m.awaitSnapshot(snapshot, lifecycle.SnapshotFailed).Status; got.Reason != lifecycle.ReasonSandboxEnded {
		t.Errorf("the snapshot is %+v", got)
	}
	if state := m.get(id).Status.State; state != lifecycle.StateStopping {
		t.Errorf("the sandbox is %s, want %s", state, lifecycle.StateStopping)
	}
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Errorf("a repeated request: %v", err)
	}
	close(removal.open)
	m.await(id, lifecycle.StateTerminated)
}

// TestDeleteOfASnapshotThatIsBeingTaken leaves nothing.
func TestDeleteOfASnapshotThatIsBeingTaken(t *testing.T) {
	m := newMachine(t).start()
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	id := m.running()
	given, next := m.take(id, files()), m.take(id, files())
	hold.await(t)
	if err := m.host.DeleteSnapshot(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(given)
	hold.await(t)
	close(hold.open)
	m.awaitSnapshot(next, lifecycle.SnapshotReady)
}

// TestRestartGoesOnWithSnapshots: what a service has begun, the next one ends.
func TestRestartGoesOnWithSnapshots(t *testing.T) {
	m := newMachine(t).start()
	id, other := m.running(), m.running()
	ready := m.keep(id)
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	// One whose result the service does not get, one that has not begun, one whose sandbox is gone
	// when the next service comes.
	m.engine.failAfter(callRemoveSnapshot, nil)
	again, queued, lost := m.take(id, files()), m.take(id, files()), m.take(other, files())
	hold.await(t)
	hold.await(t)
	m.host.Close()
	m.engine.happen(container(other), engine.EventRemoved, nil)
	stray := memorySnapshot{Snapshot: engine.Snapshot{Name: engineName("stray"), Labels: map[string]string{
		lifecycle.LabelPrefix + "instance": instance, lifecycle.LabelPrefix + "snapshot": "stray",
	}}}
	foreign := memorySnapshot{Snapshot: engine.Snapshot{Name: engineName("foreign"), Labels: map[string]string{
		lifecycle.LabelPrefix + "instance": "another", lifecycle.LabelPrefix + "snapshot": "foreign",
	}}}
	m.engine.mu.Lock()
	m.engine.snapshots[stray.Name], m.engine.snapshots[foreign.Name] = stray, foreign
	made := m.engine.snapshots[engineName(ready.ID)]
	made.Name, made.Labels = engineName(again), map[string]string{lifecycle.LabelPrefix + "instance": instance, lifecycle.LabelPrefix + "snapshot": again}
	m.engine.snapshots[made.Name] = made
	m.engine.mu.Unlock()
	close(hold.open)
	m.start()
	m.awaitSnapshot(again, lifecycle.SnapshotReady)
	if got := m.awaitSnapshot(queued, lifecycle.SnapshotReady); got.ParentID != again {
		t.Errorf("the parent is %q, want %q", got.ParentID, again)
	}
	if got := m.awaitSnapshot(lost, lifecycle.SnapshotFailed).Status; got.Reason != lifecycle.ReasonSandboxEnded || !strings.Contains(got.Message, "the service ended while") {
		t.Errorf("the snapshot of a sandbox that is gone is %+v", got)
	}
	names := m.engine.snapshotNames()
	if slices.Contains(names, stray.Name) || !slices.Contains(names, foreign.Name) {
		t.Errorf("the engine has %v", names)
	}
	if got := m.snapshot(ready.ID); got.Status.State != lifecycle.SnapshotReady {
		t.Errorf("the snapshot that was Ready is %+v", got)
	}
}

// TestLostDatabaseOfSnapshots: the engine's snapshots carry their records. What a fork made for
// itself is removed.
func TestLostDatabaseOfSnapshots(t *testing.T) {
	m := newMachine(t).start()
	kept := m.keep(m.running())
	m.host.Close()
	m.engine.mu.Lock()
	temporary := m.engine.snapshots[engineName(kept.ID)]
	temporary.Name, temporary.Labels = engineName("fork"), map[string]string{
		lifecycle.LabelPrefix + "instance": instance, lifecycle.LabelPrefix + "snapshot": "fork",
		lifecycle.LabelPrefix + "snapshot-record": `{"ID":"fork","Temporary":true}`,
	}
	m.engine.snapshots[temporary.Name] = temporary
	m.engine.mu.Unlock()
	if err := m.store.ForgetSnapshot(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	m.start()
	rebuilt := m.snapshot(kept.ID)
	rebuilt.Status.LastTransitionAt, kept.Status.LastTransitionAt = time.Time{}, time.Time{}
	rebuilt.TreeDigest, kept.TreeDigest = "", "" // made again
	if !reflect.DeepEqual(rebuilt, kept) {
		t.Errorf("the snapshot is %+v, and was %+v", rebuilt, kept)
	}
	if names := m.engine.snapshotNames(); !slices.Equal(names, []string{engineName(kept.ID)}) {
		t.Errorf("the engine has %v", names)
	}
	records, err := m.store.LoadSnapshots(t.Context())
	if err != nil || len(records) != 1 || records[0].ID != kept.ID {
		t.Errorf("the store has %+v, %v", records, err)
	}
}

// TestSnapshotWhoseFilesAreMissing is Failed after a start, and is forgotten as others are.
func TestSnapshotWhoseFilesAreMissing(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	kept := m.keep(id)
	m.host.Close()
	m.engine.mu.Lock()
	delete(m.engine.snapshots, engineName(kept.ID))
	m.engine.mu.Unlock()
	m.start()
	lost := m.snapshot(kept.ID)
	if got := lost.Status; got.State != lifecycle.SnapshotFailed || got.Reason != lifecycle.ReasonSnapshotFailed ||
		got.Message != "its files are missing at the container engine" || lost.ExpiresAt.Sub(got.LastTransitionAt) != m.options.TerminatedRetention {
		t.Errorf("the snapshot is %+v", lost)
	}
	stored, err := m.store.LoadSnapshots(t.Context())
	if err != nil || len(stored) != 1 || stored[0].Status.State != lifecycle.SnapshotFailed {
		t.Errorf("the store has %+v, %v", stored, err)
	}
	if got, want := m.statesOf(id, kept.ID), []lifecycle.SnapshotState{lifecycle.SnapshotCreating, lifecycle.SnapshotReady, lifecycle.SnapshotFailed}; !slices.Equal(got, want) {
		t.Errorf("the events have %v, want %v", got, want)
	}
	m.clock.advance(m.options.TerminatedRetention)
	m.host.Sweep()
	m.awaitRemoval(kept.ID)
}

// TestSizesOfSnapshots: what the engine hands on to another when one is removed counts as the
// other's, and so does what the sweep finds. Neither is an event.
func TestSizesOfSnapshots(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), "some bytes")
	first, second := m.keep(id), m.keep(id)
	resize := func(to int64) {
		m.engine.mu.Lock()
		defer m.engine.mu.Unlock()
		has := m.engine.snapshots[engineName(second.ID)]
		has.Exclusive = to
		m.engine.snapshots[engineName(second.ID)] = has
	}
	m.engine.failAfter(callRemoveSnapshot, func(context.Context, string) error {
		resize(15)
		return nil
	})
	if err := m.host.DeleteSnapshot(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(first.ID)
	if got := m.snapshot(second.ID); got.ExclusiveSize != 15 || got.Size != 10 || got.Status != second.Status {
		t.Errorf("after the removal: %+v", got)
	}
	resize(12)
	m.host.Sweep()
	m.host.Close()
	stored, err := m.store.LoadSnapshots(t.Context())
	if err != nil || len(stored) != 1 || stored[0].ExclusiveSize != 12 {
		t.Errorf("the store has %+v, %v", stored, err)
	}
	if got := m.statesOf(id, second.ID); len(got) != 2 {
		t.Errorf("the events have %v", got)
	}
}

// TestRestartGoesOnWithDeletions: so it does with what is Deleting.
func TestRestartGoesOnWithDeletions(t *testing.T) {
	m := newMachine(t).start()
	kept := m.keep(m.running())
	hold := newGate()
	m.engine.failBefore(callRemoveSnapshot, hold.fault)
	if err := m.host.DeleteSnapshot(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	hold.await(t)
	if got := m.snapshot(kept.ID).Status.State; got != lifecycle.SnapshotDeleting {
		t.Errorf("the snapshot is %s", got)
	}
	m.host.Close()
	close(hold.open)
	m.start()
	m.awaitRemoval(kept.ID)
}

// TestSnapshotThatCannotBeSaved becomes Ready as soon as it is durable.
func TestSnapshotThatCannotBeSaved(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.store.fail(callSaveSnapshot, errDisk)
	snapshot := m.take(id, files())
	wait.Until(t, "the engine has it", func() bool { return len(m.engine.snapshotNames()) == 1 })
	if got := m.snapshot(snapshot).Status.State; got != lifecycle.SnapshotCreating {
		t.Errorf("the snapshot is %s and not durable", got)
	}
	m.store.fail(callSaveSnapshot, nil)
	m.awaitSnapshot(snapshot, lifecycle.SnapshotReady)
}

// TestSnapshotExpires: at its time, and in the sweep when the clock was set.
func TestSnapshotExpires(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	request := files()
	request.TTL = time.Minute
	first := m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	if first.ExpiresAt.Sub(first.CreatedAt) != time.Minute {
		t.Errorf("it expires %v after %v", first.ExpiresAt, first.CreatedAt)
	}
	m.clock.advance(30 * time.Second)
	m.host.Sweep()
	m.snapshot(first.ID)
	m.clock.advance(30 * time.Second)
	m.host.Sweep()
	m.awaitRemoval(first.ID)
	// Without a sweep: the next one is noticed as soon as there is another.
	second := m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	m.clock.advance(time.Minute)
	m.keep(id)
	m.awaitRemoval(second.ID)
}

// TestQuotaOfSnapshots: by number and by bytes, of those that have not failed.
func TestQuotaOfSnapshots(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), strings.Repeat("x", 60))
	request := files()
	request.Owner, request.MaxSnapshots = "one", 2
	m.engine.failBefore(callTakeSnapshot, times(1, errRefused))
	m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotFailed)
	first := m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	if _, err := m.host.TakeSnapshot(t.Context(), id, request); kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "server.max_snapshots is 2") {
		t.Errorf("a third one: %v", err)
	}
	another := request
	another.Owner, another.MaxSnapshots, another.MaxBytes = "two", 0, 100
	m.awaitSnapshot(m.take(id, another), lifecycle.SnapshotReady)
	if got := m.awaitSnapshot(m.take(id, another), lifecycle.SnapshotFailed).Status; got.Reason != lifecycle.ReasonSnapshotTooLarge {
		t.Errorf("beyond its bytes: %+v", got)
	}
	another.MaxBytes = 60
	if _, err := m.host.TakeSnapshot(t.Context(), id, another); kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "max_snapshots_mib") {
		t.Errorf("without any bytes left: %v", err)
	}
	if err := m.host.DeleteSnapshot(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(first.ID)
	m.take(id, request)
}

// TestEngineWithoutSnapshots: every method says what it takes.
func TestEngineWithoutSnapshots(t *testing.T) {
	m := newMachine(t)
	m.box.Snapshots = nil
	m.start()
	id := m.running()
	begin := spec()
	begin.Image, begin.SnapshotID = "", "id"
	for name, err := range map[string]error{
		"take":     errorOf(m.host.TakeSnapshot(t.Context(), id, files())),
		"await":    errorOf(m.host.AwaitSnapshot(t.Context(), "id", time.Second)),
		"get":      errorOf(m.host.Snapshot(t.Context(), "id")),
		"list":     errorOf(m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{}, lifecycle.Page{Number: 1, Size: 1})),
		"delete":   m.host.DeleteSnapshot(t.Context(), "id"),
		"rollback": m.host.Rollback(t.Context(), id, "id"),
		"fork":     errorOf(m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: 1, Snapshot: files()}, lifecycle.CreateOptions{})),
		"create":   errorOf(m.host.Create(t.Context(), begin, lifecycle.CreateOptions{})),
	} {
		if kindOf(err) != lifecycle.KindUnsupported || !strings.Contains(err.Error(), "local engine") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.host.Sweep()
}

// TestSnapshotIsNoPauseOfAnother: the engine freezes a sandbox for a snapshot, and reports it as
// any other freeze; a freeze that outlasts the snapshot is another's.
func TestSnapshotIsNoPauseOfAnother(t *testing.T) {
	for name, stays := range map[string]bool{"thawed": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			id := m.running()
			hold := newGate()
			m.engine.failBefore(callTakeSnapshot, func(ctx context.Context, snapshot string) error {
				m.engine.happen(container(id), engine.EventFrozen, func(c *engine.Container) { c.Status = engine.StatusFrozen })
				if err := hold.fault(ctx, snapshot); err != nil || stays {
					return err
				}
				m.engine.happen(container(id), engine.EventThawed, func(c *engine.Container) { c.Status = engine.StatusRunning })
				return nil
			})
			before := m.engine.count(callInspect)
			snapshot := m.take(id, files())
			hold.await(t)
			wait.Until(t, "the box is inspected", func() bool { return m.engine.count(callInspect) > before })
			m.host.Sweep()
			wait.Until(t, "the box is inspected again", func() bool { return m.engine.count(callInspect) > before+1 })
			close(hold.open)
			m.awaitSnapshot(snapshot, lifecycle.SnapshotReady)
			if stays {
				m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonExternalPause)
				return
			}
			page, err := m.store.Events(t.Context(), lifecycle.EventQuery{SandboxID: id, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range page.Events {
				if event.To == lifecycle.StatePausing {
					t.Errorf("the sandbox was paused: %+v", event)
				}
			}
		})
	}
}

// TestFailuresAreBounded: an owner has so many records of snapshots that have failed.
func TestFailuresAreBounded(t *testing.T) {
	const atMost = 100
	m := newMachine(t).start()
	id := m.running()
	m.engine.failBefore(callTakeSnapshot, func(context.Context, string) error { return engine.ErrNoRoom })
	var all []string
	for range atMost + 2 {
		all = append(all, m.take(id, files()))
	}
	for _, snapshot := range all[:2] {
		m.awaitRemoval(snapshot)
	}
	for _, snapshot := range all[2:] {
		m.awaitSnapshot(snapshot, lifecycle.SnapshotFailed)
	}
}

// TestSnapshotIdempotency: a repeated request returns the snapshot of the first one, also of
// another service, and not that of another body or sandbox.
func TestSnapshotIdempotency(t *testing.T) {
	m := newMachine(t).start()
	id, other := m.running(), m.running()
	request := files()
	request.IdempotencyKey, request.Metadata = "key", map[string]string{"a": "1"}
	first := m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady)
	for range 2 {
		again, err := m.host.TakeSnapshot(t.Context(), id, request)
		if err != nil || again.ID != first.ID || again.Status.State != lifecycle.SnapshotReady || again.Metadata["a"] != "1" {
			t.Errorf("%+v, %v", again, err)
		}
		m.host.Close()
		m.start()
	}
	changed := request
	changed.Metadata = map[string]string{"a": "2"}
	for _, r := range []struct {
		id      string
		request lifecycle.SnapshotRequest
	}{{id, changed}, {other, request}} {
		if _, err := m.host.TakeSnapshot(t.Context(), r.id, r.request); kindOf(err) != lifecycle.KindConflict {
			t.Errorf("another request with the key: %v", err)
		}
	}
	foreign := request
	foreign.Owner = "another"
	if taken, err := m.host.TakeSnapshot(t.Context(), id, foreign); err != nil || taken.ID == first.ID {
		t.Errorf("the key of another owner: %+v, %v", taken, err)
	}
	if err := m.host.DeleteSnapshot(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(first.ID)
	if _, err := m.host.TakeSnapshot(t.Context(), id, request); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a snapshot that is gone: %v", err)
	}
}

// TestSnapshotFilters: all conditions hold together.
func TestSnapshotFilters(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	ids := map[string]string{}
	for name, team := range map[string]string{"one": "red", "two": "red", "three": "blue"} {
		request := files()
		request.Name, request.Metadata = name, map[string]string{"team": team, "by": "test"}
		ids[name] = m.awaitSnapshot(m.take(id, request), lifecycle.SnapshotReady).ID
	}
	for _, tt := range []struct {
		filter lifecycle.SnapshotFilter
		want   int
	}{
		{lifecycle.SnapshotFilter{Metadata: map[string]string{"team": "red"}}, 2}, {lifecycle.SnapshotFilter{Name: new("one")}, 1},
		{lifecycle.SnapshotFilter{Metadata: map[string]string{"team": "red", "by": "test"}, Name: new("three")}, 0},
		{lifecycle.SnapshotFilter{Metadata: map[string]string{"none": ""}}, 0}, {lifecycle.SnapshotFilter{Name: new("")}, 0},
	} {
		list, err := m.host.Snapshots(t.Context(), tt.filter, lifecycle.Page{Number: 1, Size: 10})
		if err != nil || list.Total != tt.want {
			t.Errorf("%+v: %+v, %v; want %d", tt.filter, list, err, tt.want)
		}
	}
	bad := files()
	bad.Metadata = map[string]string{"sandbox.internal/x": ""}
	if _, err := m.host.TakeSnapshot(t.Context(), id, bad); kindOf(err) != lifecycle.KindInvalid {
		t.Errorf("a reserved key: %v", err)
	}
}
