package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/wait"
)

// TestConcurrentWriters mixes operations that fail into batches with ones that do not.
func TestConcurrentWriters(t *testing.T) {
	const clients, each = 40, 10
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	insert(t, s, record("taken"))
	var group errgroup.Group
	var want []string
	for client := range clients {
		for i := range each {
			want = append(want, fmt.Sprintf("%02d-%02d", client, i))
		}
		group.Go(func() error {
			for i := range each {
				id := fmt.Sprintf("%02d-%02d", client, i)
				if err := s.Insert(ctx, record("taken"), nil); err == nil {
					return errors.New("a taken id was inserted again")
				}
				key := &lifecycle.IdempotencyKey{Owner: id, Key: "key", SandboxID: id,
					CreatedAt: birth}
				if err := s.Insert(ctx, record(id), key); err != nil {
					return err
				}
				if _, found, err := s.FindKey(ctx, id, "key", birth); err != nil || !found {
					return fmt.Errorf("key of %s: found %t, error %w", id, found, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := ids(load(t, reopen(t, s, dir))); !slices.Equal(got, append(want, "taken")) {
		t.Errorf("got %d records %v, want %d", len(got), got, len(want)+1)
	}
}

func TestCloseWhileWriting(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	inserted := make(chan string, 10_000)
	var group errgroup.Group
	for client := range 20 {
		group.Go(func() error {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%02d-%04d", client, i)
				if err := s.Insert(t.Context(), record(id), nil); err != nil {
					if !strings.Contains(err.Error(), "closed") {
						return err
					}
					return nil
				}
				inserted <- id
			}
		})
	}
	first := wait.For(t, "a record", inserted)
	reopened := reopen(t, s, dir)
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	close(inserted)
	want := []string{first}
	for id := range inserted {
		want = append(want, id)
	}
	slices.Sort(want)
	if got := ids(load(t, reopened)); !slices.Equal(got, want) {
		t.Errorf("the store has %d records, %d were inserted", len(got), len(want))
	}
}

func TestDiskFull(t *testing.T) {
	// A record larger than SQLite's cache fails on the full disk in the middle of its statement, a
	// small one at the commit.
	t.Run("at the commit", func(t *testing.T) { testDiskFull(t, 10_000, "size=1m", "size=8m") })
	t.Run("in a statement",
		func(t *testing.T) { testDiskFull(t, 4_000_000, "size=24m", "size=128m") })
}

func testDiskFull(t *testing.T, recordSize int, small, large string) {
	dir := smallDisk(t, small)
	directory := filepath.Join(dir, "store")
	s := open(t, directory)
	kept, failure := fill(t, s, recordSize)
	if !strings.Contains(failure.Error(), "full") {
		t.Errorf("got error %q, want one that says that the disk is full", failure)
	}
	if len(kept) == 0 {
		t.Fatal("nothing fitted")
	}
	if got := ids(load(t, s)); !slices.Equal(got, kept) {
		t.Errorf("with a full disk the store has %d records, %d were inserted", len(got), len(kept))
	}

	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, large); err != nil {
		t.Fatal(err)
	}
	insert(t, s, record("later"))
	if got := ids(load(t, reopen(t, s, directory))); !slices.Equal(got, append(kept, "later")) {
		t.Errorf("with space again the store has %d records, %d were inserted", len(got),
			len(kept)+1)
	}
}

// TestStartOnAFullDisk: the error says what is missing, and not that a sound file may be damaged.
func TestStartOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, "size=2m")
	directory, rest := filepath.Join(dir, "store"), filepath.Join(dir, "rest")
	s := open(t, directory)
	insert(t, s, record("kept"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rest, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if _, err := store.Open(directory, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "the disk of "+directory+" is full") ||
		strings.Contains(err.Error(), "aside") {
		t.Errorf("opened on a full disk: %v", err)
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	if got := ids(load(t, open(t, directory))); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("the store has %q", got)
	}
}

// smallDisk mounts a file system of that size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, size); err != nil {
		t.Fatalf("this test mounts a small tmpfs and so runs as root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill inserts with several clients until each has got an error, and returns what was inserted and
// the first error.
func fill(t *testing.T, s *store.Store, recordSize int) ([]string, error) {
	t.Helper()
	inserted := make(chan string, 10_000)
	var group errgroup.Group
	for client := range 4 {
		group.Go(func() error {
			for i := 0; ; i++ {
				r := record(fmt.Sprintf("%02d-%04d", client, i))
				r.Sandbox.Status.Message = strings.Repeat("x", recordSize)
				if err := s.Insert(t.Context(), r, nil); err != nil {
					return err
				}
				inserted <- r.Sandbox.ID
			}
		})
	}
	failure := group.Wait()
	close(inserted)
	var kept []string
	for id := range inserted {
		kept = append(kept, id)
	}
	slices.Sort(kept)
	return kept, failure
}
