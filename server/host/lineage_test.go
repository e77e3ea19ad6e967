package host_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// TestLineage: snapshots and sandboxes are related also over what is gone, and others are not.
func TestLineage(t *testing.T) {
	m := newMachine(t).start()
	first := m.running()
	kept := m.keep(first)
	gone := m.keep(first)
	stranger := m.running()
	m.keep(stranger)
	forks, err := m.host.Fork(t.Context(), first, lifecycle.ForkRequest{Count: 1, Snapshot: files()}, lifecycle.CreateOptions{})
	if err != nil || forks[0].Err != nil {
		t.Fatal(err, forks)
	}
	fork := forks[0].Sandbox.ID
	m.await(fork, lifecycle.StateRunning)
	of := m.keep(fork)
	begun, err := m.host.Create(t.Context(), lifecycle.Spec{SnapshotID: gone.ID, Timeout: spec().Timeout}, lifecycle.CreateOptions{Owner: gone.Owner})
	if err != nil {
		t.Fatal(err)
	}
	m.await(begun.ID, lifecycle.StateRunning)
	if err := m.host.DeleteSnapshot(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(gone.ID)
	for range 2 {
		for _, id := range []string{first, fork, begun.ID} {
			lineage, err := m.host.Lineage(t.Context(), id, nil)
			var snapshots, sandboxes, parents []string
			for _, s := range lineage.Snapshots {
				snapshots = append(snapshots, s.ID)
			}
			for _, s := range lineage.Sandboxes {
				sandboxes, parents = append(sandboxes, s.ID), append(parents, s.ParentID)
			}
			if err != nil || lineage.Truncated || !slices.Equal(snapshots, []string{kept.ID, of.ID}) ||
				!slices.Equal(sandboxes, []string{first, fork, begun.ID}) || !slices.Equal(parents, []string{"", first, first}) {
				t.Errorf("of %s: the snapshots %q, the sandboxes %q of %q, %v", id, snapshots, sandboxes, parents, err)
			}
		}
		m.host.Close()
		m.start()
	}
	none, err := m.host.Lineage(t.Context(), first, new("another key"))
	if err != nil || len(none.Snapshots)+len(none.Sandboxes) > 0 {
		t.Errorf("another key sees %+v, %v", none, err)
	}
	if _, err := m.host.Lineage(t.Context(), "none", nil); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("of no sandbox: %v", err)
	}
}
