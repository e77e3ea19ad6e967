package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/server/lifecycle"
)

// TestSyncs: the kernel has nothing left to write of what is durable; what was written without a
// sync it writes later, but before any event is shown.
func TestSyncs(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ctx, r := t.Context(), record("a")
	steps := []struct {
		name  string
		run   func() error
		dirty bool
	}{
		{"insert", func() error { return s.Insert(ctx, r, nil, event("a", birth)) }, false},
		{"save unsynced", func() error { return s.SaveUnsynced(ctx, r, event("a", birth)) }, true},
		{"save", func() error { return s.Save(ctx, r, event("a", birth)) }, false},
		{"save unsynced again", func() error { return s.SaveUnsynced(ctx, r, event("a", birth)) }, true},
		{"a synced change without effect", func() error { return s.PurgeKeys(ctx, birth) }, true},
		{"events", func() error {
			_, err := s.Events(ctx, lifecycle.EventQuery{Limit: 1})
			return err
		}, false},
		{"save unsynced, then close", func() error { return s.SaveUnsynced(ctx, r, event("a", birth)) }, true},
	}
	for _, step := range steps {
		if err := step.run(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := dirtyPages(t, dir) > 0; got != step.dirty {
			t.Errorf("after %s: unsynced %t, want %t", step.name, got, step.dirty)
		}
	}
	wantGapless(t, reopen(t, s, dir), 5)
}

// TestEventsOfAnEarlierProcess: one that was killed may have left what it had not synced.
func TestEventsOfAnEarlierProcess(t *testing.T) {
	dir := withRecord(t)
	other := rawDB(t, dir)
	other.SetMaxOpenConns(1)
	for _, query := range []string{"PRAGMA synchronous = OFF", "UPDATE sandboxes SET state = 'Paused'"} {
		if _, err := other.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	if dirtyPages(t, dir) == 0 {
		t.Fatal("the other connection has left no dirty page")
	}
	page(t, open(t, dir), lifecycle.EventQuery{})
	if n := dirtyPages(t, dir); n > 0 {
		t.Errorf("%d pages are not synced when events are read", n)
	}
}

// dirtyPages returns how many pages of the write-ahead log the kernel has not written to the disk.
func dirtyPages(t *testing.T, dir string) uint64 {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, "sandbox.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var stat unix.Cachestat_t
	if err := unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{}, &stat, 0); err != nil {
		t.Fatalf("cachestat (Linux 6.5): %v", err)
	}
	return stat.Dirty + stat.Writeback
}
