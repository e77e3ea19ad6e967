package store_test

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// snapshot returns the record of a snapshot of a sandbox.
func snapshot(sandbox string) lifecycle.Snapshot {
	return lifecycle.Snapshot{
		ID: "of-" + sandbox, SandboxID: sandbox, Kind: lifecycle.SnapshotFilesystem, Owner: "key", Image: "busybox", CreatedAt: birth,
		Status: lifecycle.SnapshotStatus{State: lifecycle.SnapshotCreating, LastTransitionAt: birth},
	}
}

func loadSnapshots(t testing.TB, s *store.Store) []lifecycle.Snapshot {
	t.Helper()
	snapshots, err := s.LoadSnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshots
}

// TestSnapshots: they are as they were saved, oldest first, and outlive the records of their
// sandboxes.
func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	insert(t, s, record("a"))
	full, least, gone := snapshot("a"), snapshot("b"), snapshot("c")
	full.CreatedAt = birth.Add(time.Second)
	full.ParentID, full.Name, full.Comment, full.Temporary, full.MaxBytes = least.ID, "<name>", "comment", true, 5
	full.ExpiresAt, full.Size, full.ExclusiveSize, full.Frozen, full.EngineImage = birth.Add(time.Hour), 3, 2, time.Millisecond, "sha256:1"
	full.Origin = lifecycle.SnapshotOrigin{
		Entrypoint: []string{"sleep"}, Resources: lifecycle.ResourceLimits{"cpu": "1"}, RuntimeClass: "class",
		NetworkPolicy: &lifecycle.NetworkPolicy{DefaultAction: "deny"},
	}
	for _, each := range []lifecycle.Snapshot{full, least, gone} {
		if err := s.InsertSnapshot(t.Context(), each, nil, event(each.SandboxID, birth)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.InsertSnapshot(t.Context(), full, nil, event("a", birth)); err == nil || !strings.Contains(err.Error(), full.ID) {
		t.Errorf("inserting a snapshot twice: %v", err)
	}
	full.Status.State = lifecycle.SnapshotReady
	kept := record("a")
	kept.LastSnapshot = full.ID
	if err := s.SaveSnapshot(t.Context(), full, &kept, event("a", birth)); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); len(got) != 1 || got[0].LastSnapshot != full.ID {
		t.Errorf("the record of the sandbox is %+v", got)
	}
	least.ExclusiveSize = 7
	if err := s.SaveSnapshotUnsynced(t.Context(), least); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		if err := s.ForgetSnapshot(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Forget(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSnapshot(t.Context(), full, &kept, event("a", birth)); err == nil {
		t.Error("the record of a sandbox was saved that is forgotten")
	}
	if err := s.SaveSnapshotUnsynced(t.Context(), gone); err == nil || !strings.Contains(err.Error(), gone.ID) {
		t.Errorf("saving the size of a forgotten snapshot: %v", err)
	}
	if err := s.SaveSnapshot(t.Context(), gone, nil, event("c", birth)); err == nil || !strings.Contains(err.Error(), gone.ID) {
		t.Errorf("saving a forgotten snapshot: %v", err)
	}
	s = reopen(t, s, dir)
	if got, want := loadSnapshots(t, s), []lifecycle.Snapshot{least, full}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	wantGapless(t, s, 4) // what failed has left no event
}

// TestDamagedSnapshot: a record that cannot be read is named, and so is what gives it up.
func TestDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.InsertSnapshot(t.Context(), snapshot("a"), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{`{"ID":"of-a"`, `{"ID":"another"}`} {
		rawExec(t, dir, "UPDATE snapshots SET record = ?", []byte(damaged))
		s := open(t, dir)
		_, err := s.LoadSnapshots(t.Context())
		if err == nil {
			t.Fatalf("%s was loaded", damaged)
		}
		for _, part := range []string{filepath.Join(dir, "sandbox.db"), `"of-a"`, "restore", "DELETE FROM snapshots WHERE id = 'of-a'"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not contain %q", err, part)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDatabaseBeforeSnapshots gets the table, and keeps what it has.
func TestDatabaseBeforeSnapshots(t *testing.T) {
	dir := withRecord(t)
	rawExec(t, dir, "DROP TABLE snapshots; PRAGMA user_version = 5")
	s := open(t, dir)
	if got := ids(load(t, s)); len(got) != 1 || got[0] != "a" {
		t.Errorf("the records are %v", got)
	}
	if got := loadSnapshots(t, s); len(got) != 0 {
		t.Errorf("the snapshots are %+v", got)
	}
	if err := s.InsertSnapshot(t.Context(), snapshot("a"), nil); err != nil {
		t.Fatal(err)
	}
}

// TestKeyOfSnapshot: a key is stored with its snapshot, or neither is.
func TestKeyOfSnapshot(t *testing.T) {
	s := open(t, t.TempDir())
	key := lifecycle.IdempotencyKey{Owner: "alice", Key: "k", Digest: "d", SandboxID: "a", CreatedAt: birth}
	if err := s.InsertSnapshot(t.Context(), snapshot("a"), &key); err != nil {
		t.Fatal(err)
	}
	if found, ok, err := s.FindKey(t.Context(), "alice", "k", birth); err != nil || !ok || found != key {
		t.Errorf("the key is %+v, %t, %v", found, ok, err)
	}
	if err := s.InsertSnapshot(t.Context(), snapshot("b"), &key); !errors.Is(err, lifecycle.ErrKeyInUse) {
		t.Errorf("a second snapshot with the key: %v", err)
	}
	if all, err := s.LoadSnapshots(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("there are %+v, %v", all, err)
	}
}
