package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func keyOf(owner, sandbox string, at time.Time) *lifecycle.IdempotencyKey {
	return &lifecycle.IdempotencyKey{Owner: owner, Key: "key", Digest: "digest of " + sandbox,
		SandboxID: sandbox, CreatedAt: at}
}

func insertWithKey(t *testing.T, s *store.Store, id string, key *lifecycle.IdempotencyKey) {
	t.Helper()
	if err := s.Insert(t.Context(), record(id), key); err != nil {
		t.Fatal(err)
	}
}

func expectKey(t *testing.T, s *store.Store, owner string, notBefore time.Time,
	want *lifecycle.IdempotencyKey) {
	t.Helper()
	got, found, err := s.FindKey(t.Context(), owner, "key", notBefore)
	switch {
	case err != nil:
		t.Error(err)
	case want == nil && found:
		t.Errorf("owner %q has an unexpected key %+v", owner, got)
	case want != nil && (!found || got != *want):
		t.Errorf("owner %q: got key %+v (found %t), want %+v", owner, got, found, *want)
	}
}

func TestFindKey(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	one, two := keyOf("one", "a", birth), keyOf("", "b", birth)
	insertWithKey(t, s, "a", one)
	insertWithKey(t, s, "b", two)
	s = reopen(t, s, dir)
	expectKey(t, s, "one", birth, one)
	expectKey(t, s, "one", birth.Add(1), nil)
	expectKey(t, s, "", birth.Add(-lifecycle.IdempotencyWindow), two)
	expectKey(t, s, "three", birth, nil)
	if err := s.Forget(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	expectKey(t, s, "one", birth, one)
}

func TestPurgeKeys(t *testing.T) {
	s := open(t, t.TempDir())
	older, younger := keyOf("older", "a", birth), keyOf("younger", "b", birth.Add(1))
	insertWithKey(t, s, "a", older)
	insertWithKey(t, s, "b", younger)
	if err := s.PurgeKeys(t.Context(), birth.Add(1)); err != nil {
		t.Fatal(err)
	}
	expectKey(t, s, "older", birth, nil)
	expectKey(t, s, "younger", birth, younger)
}

func TestKeyInUse(t *testing.T) {
	s := open(t, t.TempDir())
	first := keyOf("one", "a", birth)
	insertWithKey(t, s, "a", first)

	err := s.Insert(t.Context(), record("b"),
		keyOf("one", "b", birth.Add(lifecycle.IdempotencyWindow)))
	if !errors.Is(err, lifecycle.ErrKeyInUse) {
		t.Fatalf("got error %v, want %v", err, lifecycle.ErrKeyInUse)
	}
	expectKey(t, s, "one", birth, first)
	if got := ids(load(t, s)); len(got) != 1 || got[0] != "a" {
		t.Errorf("the store has %v: the record came without its key", got)
	}

	later := keyOf("one", "b", birth.Add(lifecycle.IdempotencyWindow+1))
	insertWithKey(t, s, "b", later)
	expectKey(t, s, "one", birth, later)
}

// TestCheckWritable: each check is a write of its own, which leaves nothing that a client could
// find or that stays.
func TestCheckWritable(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	log := filepath.Join(dir, "sandbox.db-wal")
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for range 3 {
		before := size()
		if err := s.CheckWritable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if size() == before {
			t.Error("nothing was written")
		}
	}
	expectKey(t, s, "", birth.Add(-lifecycle.IdempotencyWindow), nil)
	if err := s.PurgeKeys(t.Context(), birth); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := rawDB(t, dir).QueryRow("SELECT count(*) FROM idempotency_keys").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d keys are left, %v", left, err)
	}
}
