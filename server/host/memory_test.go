package host_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// ofMemory is a request for a snapshot of memory.
func ofMemory() lifecycle.SnapshotRequest {
	return lifecycle.SnapshotRequest{Kind: lifecycle.SnapshotMemory}
}

// withMemory returns a machine with a class of sandboxes whose processes can be kept, and one of
// those sandboxes.
func withMemory(t *testing.T) (m *machine, id string) {
	t.Helper()
	m = newMachine(t)
	m.box.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "gvisor", Handler: "runsc"}}
	m.start()
	return m, m.classed()
}

func (m *machine) classed() string {
	m.t.Helper()
	asked := spec()
	asked.RuntimeClass = "gvisor"
	sandbox, err := m.host.Create(m.t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.await(sandbox.ID, lifecycle.StateRunning)
	return sandbox.ID
}

// TestMemory: a sandbox that is rolled back to a snapshot of memory says that its processes go on,
// also in another service, or why they do not.
func TestMemory(t *testing.T) {
	m, id := withMemory(t)
	m.engine.write(container(id), "before")
	kept := m.awaitSnapshot(m.take(id, ofMemory()), lifecycle.SnapshotReady)
	if kept.Kind != lifecycle.SnapshotMemory {
		t.Errorf("the snapshot is %+v", kept)
	}
	m.engine.write(container(id), "after")
	m.host.Close()
	m.start()
	rollback := func(reason lifecycle.Reason, words string) {
		t.Helper()
		token := m.host.RecordOf(id).Token
		if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
			t.Fatal(err)
		}
		m.awaitReason(id, lifecycle.StateRunning, reason)
		if got := m.get(id); !strings.Contains(got.Status.Message, words) || got.SnapshotID != kept.ID {
			t.Errorf("the sandbox is %+v", got)
		}
		if got := m.engine.read(container(id)); got != "before" || m.host.RecordOf(id).Token != token {
			t.Errorf("the files are %q, or the token is another one", got)
		}
	}
	rollback(lifecycle.ReasonContainerRunning, "processes go on")
	m.engine.loseMemory("the disk is damaged")
	rollback(lifecycle.ReasonRollbackFailed, "the disk is damaged")
}

// TestMemoryIsRefused: where no snapshot of memory can be taken, and to all but its sandbox.
func TestMemoryIsRefused(t *testing.T) {
	m, id := withMemory(t)
	plain, other := m.running(), m.classed()
	if _, err := m.host.TakeSnapshot(t.Context(), plain, ofMemory()); kindOf(err) != lifecycle.KindUnsupported || !strings.Contains(err.Error(), "gVisor") {
		t.Errorf("of a sandbox of the default runtime: %v", err)
	}
	kept := m.awaitSnapshot(m.take(id, ofMemory()), lifecycle.SnapshotReady)
	_, created := m.host.Create(t.Context(), from(kept.ID), lifecycle.CreateOptions{})
	for what, err := range map[string]error{
		"a rollback of another sandbox": m.host.Rollback(t.Context(), other, kept.ID), "a create": created,
	} {
		if kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "token") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := m.host.Suspend(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	m.await(other, lifecycle.StatePaused)
	if _, err := m.host.TakeSnapshot(t.Context(), other, ofMemory()); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("of a sandbox without processes: %v", err)
	}
	listing, err := m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{}, lifecycle.Page{Number: 1, Size: 9})
	if err != nil || listing.Total != 1 {
		t.Errorf("there are the snapshots %+v (%v)", listing, err)
	}
}
