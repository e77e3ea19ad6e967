package snapshots_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/trash"
	"sandbox.internal/runtime/oci/internal/treecopy"
)

// site is where a store keeps its snapshots, and what containers lie on.
type site struct {
	directory string
	using     []string
	restoring []string
}

func (s *site) open(t *testing.T) *snapshots.Store {
	t.Helper()
	bin := trash.New(t.TempDir(), zerolog.Nop())
	t.Cleanup(bin.Stop)
	store, err := snapshots.Open(s.directory, bin, func() []string { return s.using }, func() []string { return s.restoring }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// make makes a snapshot of an upper layer that lies on base, as Commit does, with nothing in it.
func (s *site) make(t *testing.T, store *snapshots.Store, record snapshots.Record) string {
	t.Helper()
	making, _, err := store.Begin(record.Name)
	if err != nil || making == nil {
		t.Fatalf("begin %s: %v", record.Name, err)
	}
	made, err := making.Commit(record, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func (s *site) entries(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(s.directory)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestRemovedSnapshotsStayWhileNeeded: a chain of removed snapshots goes with the last container
// that lies on it, also in another store.
func TestRemovedSnapshotsStayWhileNeeded(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	var chain []string
	for i := range 20 {
		chain = append(chain, s.make(t, store, snapshots.Record{Name: fmt.Sprint(i), Base: append([]string(nil), chain...)}))
	}
	s.using = chain
	for i := range chain {
		if err := store.Remove(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if list, n := store.List(), s.entries(t); len(list) != 0 || n != len(chain) {
		t.Errorf("%d snapshots are listed and %d kept, want 0 and %d", len(list), n, len(chain))
	}
	store = s.open(t)
	if trees, err := store.Trees(chain); err != nil || len(trees) != len(chain) {
		t.Errorf("%d trees, %v", len(trees), err)
	}
	s.using = chain[:1]
	store.Free()
	if n := s.entries(t); n != 1 {
		t.Errorf("%d snapshots are kept, want the one that is needed", n)
	}
	s.using = nil
	store.Free()
	if n := s.entries(t); n != 0 {
		t.Errorf("%d snapshots are kept, and nothing needs them", n)
	}
}

// TestRemovedBytesAreHandedOn: a snapshot that links the files of a removed one has their bytes.
func TestRemovedBytesAreHandedOn(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	now := time.Now().UTC()
	at := func(second int) time.Time { return now.Add(time.Duration(second) * time.Second) }
	s.make(t, store, snapshots.Record{Name: "first", Source: "upper", Created: at(0), Bytes: 80, Exclusive: 80})
	s.make(t, store, snapshots.Record{Name: "third", Source: "upper", Created: at(2), Bytes: 90, Exclusive: 5})
	s.make(t, store, snapshots.Record{Name: "second", Source: "upper", Created: at(1), Bytes: 85, Exclusive: 10})
	s.make(t, store, snapshots.Record{Name: "other", Source: "another", Created: at(1), Bytes: 7, Exclusive: 7})
	check := func(want map[string]int64) {
		t.Helper()
		for _, store := range []*snapshots.Store{store, s.open(t)} {
			got := map[string]int64{}
			for _, record := range store.List() {
				got[record.Name] = record.Exclusive
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the bytes are %v, want %v", got, want)
			}
		}
	}
	if err := store.Remove("first"); err != nil {
		t.Fatal(err)
	}
	check(map[string]int64{"second": 85, "third": 5, "other": 7}) // and no more than it has
	if err := store.Remove("second"); err != nil {
		t.Fatal(err)
	}
	check(map[string]int64{"third": 90, "other": 7})
}

// TestCutOffSnapshotGoes: a directory without a record is thrown away by the next store.
func TestCutOffSnapshotGoes(t *testing.T) {
	s := &site{directory: t.TempDir()}
	s.open(t)
	if err := os.MkdirAll(filepath.Join(s.directory, layout.NewID(), "tree"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.open(t)
	if n := s.entries(t); n != 0 {
		t.Errorf("%d directories are left", n)
	}
}

// merge merges a chain to a tree of so many bytes, with nothing in it.
func (s *site) merge(t *testing.T, store *snapshots.Store, bytes int64, chain ...string) (id string, release func()) {
	t.Helper()
	merged, release, err := store.Merge(t.Context(), "image", chain, func(*snapshots.Making) (snapshots.Record, error) {
		return snapshots.Record{Bytes: bytes, Created: time.Now().UTC()}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return merged.ID, release
}

// TestMergedBytes: the bytes of removed snapshots are counted once, with what needs them, for as
// long as something has their files.
func TestMergedBytes(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	now := time.Now().UTC()
	at := func(second int) time.Time { return now.Add(time.Duration(second) * time.Second) }
	one := s.make(t, store, snapshots.Record{Name: "one", Source: "upper1", Created: at(1), Bytes: 100, Exclusive: 100})
	two := s.make(t, store, snapshots.Record{Name: "two", Source: "upper2", Created: at(2), Bytes: 10, Exclusive: 10, Base: []string{one}})
	s.using = []string{one, two}
	merged, release := s.merge(t, store, 105, one, two)
	if again, release := s.merge(t, store, 105, one, two); again != merged {
		t.Error("one chain was merged twice")
	} else {
		release()
	}
	if bytes := store.Uncounted([]string{one, two}); bytes != 0 {
		t.Errorf("%d bytes of snapshots that are listed are not counted", bytes)
	}
	s.make(t, store, snapshots.Record{Name: "three", Source: "upper3", Created: at(3), Bytes: 1, Exclusive: 1, Base: []string{merged}})
	release()
	check := func(want map[string]int64, entries int) {
		t.Helper()
		for _, store := range []*snapshots.Store{store, s.open(t)} {
			got := map[string]int64{}
			for _, record := range store.List() {
				got[record.Name] = record.Exclusive
			}
			if n := s.entries(t); fmt.Sprint(got) != fmt.Sprint(want) || n != entries {
				t.Errorf("the bytes are %v and %d snapshots are kept, want %v and %d", got, n, want, entries)
			}
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := store.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	check(map[string]int64{"one": 100, "two": 10, "three": 1}, 4)
	remove("one")
	check(map[string]int64{"two": 110, "three": 1}, 4) // which lies on it
	remove("two")
	check(map[string]int64{"three": 111}, 4)
	s.using = nil
	store.Free()
	check(map[string]int64{"three": 106}, 2) // what the merged one has
	if bytes := store.Uncounted([]string{merged}); bytes != 0 {
		t.Errorf("%d bytes of a merged snapshot are not counted", bytes)
	}
	s.using = []string{merged}
	remove("three")
	check(nil, 1)
	if bytes := store.Uncounted([]string{merged}); bytes != 105 {
		t.Errorf("%d bytes of a merged snapshot are not counted, want 105", bytes)
	}
	s.make(t, store, snapshots.Record{Name: "four", Source: "upper4", Created: at(4), Base: []string{merged}})
	check(map[string]int64{"four": 105}, 2)
	s.using = nil
	remove("four")
	check(nil, 0)
}

// TestListsAreCounted: the index and the hashes of a snapshot count as its own, of a removed one
// with those of the snapshot that its bytes are counted for, and not when they are gone.
func TestListsAreCounted(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	index := treecopy.Index{}
	for i := range uint64(1000) {
		index[i] = treecopy.File{Stat: treecopy.Stat{Inode: i}, Path: fmt.Sprint("a file with the number ", i)}
	}
	made := func(name string, base ...string) string {
		making, _, err := store.Begin(name)
		if err != nil || making == nil {
			t.Fatalf("begin %s: %v", name, err)
		}
		record, err := making.Commit(snapshots.Record{Base: base, Bytes: 100, Exclusive: 100}, index)
		if err != nil {
			t.Fatal(err)
		}
		return record.ID
	}
	onDisk := func(path string) int64 {
		t.Helper()
		var info unix.Stat_t
		if err := unix.Stat(path, &info); err != nil {
			t.Fatal(err)
		}
		return info.Blocks * 512
	}
	one := made("one")
	two := made("two", one)
	// Synced, so that its blocks are those that it keeps.
	if err := layout.ReplaceFileSynced(store.Hashes(two), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	store.WeighLists(two)
	wantOne := onDisk(store.Index(one))
	wantTwo := onDisk(store.Index(two)) + onDisk(store.Hashes(two))
	if wantOne < 10_000 || wantTwo < 1<<20 {
		t.Fatalf("the lists have %d and %d bytes", wantOne, wantTwo)
	}
	check := func(want map[string]int64) {
		t.Helper()
		for _, store := range []*snapshots.Store{store, s.open(t)} {
			got := map[string]int64{}
			for _, record := range store.List() {
				described := record.Describe()
				got[record.Name] = described.Exclusive
				if described.Bytes != 100 {
					t.Errorf("the size of %s is %d, want 100", record.Name, described.Bytes)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the bytes are %v, want %v", got, want)
			}
		}
	}
	check(map[string]int64{"one": 100 + wantOne, "two": 100 + wantTwo})
	if err := store.Remove("one"); err != nil { // two lies on it
		t.Fatal(err)
	}
	check(map[string]int64{"two": 200 + wantOne + wantTwo})
	s.using = []string{one}
	if err := store.Remove("two"); err != nil {
		t.Fatal(err)
	}
	check(nil)
	if bytes := store.Uncounted([]string{one}); bytes != 100+wantOne {
		t.Errorf("%d bytes are not counted, want %d", bytes, 100+wantOne)
	}
}

// TestMemoryStaysWhileRestored: what a removed snapshot has of processes is there until no
// container is to be started with them, and its tree until none lies on it.
func TestMemoryStaysWhileRestored(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	making, _, err := store.Begin("one")
	if err != nil || making == nil {
		t.Fatal(err)
	}
	if _, err := making.MakeMemory(); err != nil {
		t.Fatal(err)
	}
	made, err := making.Commit(snapshots.Record{Memory: &snapshots.Memory{Container: "c", Bytes: 7}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if described := made.Describe(); !described.Memory || described.Bytes != 7 || described.Exclusive != 7 {
		t.Errorf("the snapshot is %+v", described)
	}
	has := func() bool {
		_, directory, ok := store.Memory(made.ID)
		_, err := os.Stat(directory)
		return ok && err == nil
	}
	s.using, s.restoring = []string{made.ID}, []string{made.ID}
	store = s.open(t)
	if err := store.Remove("one"); err != nil || !has() {
		t.Errorf("a container is to be started with what is gone (%v)", err)
	}
	s.restoring = nil
	store.Free()
	if _, err := os.Stat(filepath.Join(s.directory, made.ID, "memory")); has() || !os.IsNotExist(err) || s.entries(t) != 1 {
		t.Errorf("no container is to be started with what is there: %v", err)
	}
	s.using = nil
	if store = s.open(t); store != nil {
		store.Free()
	}
	if s.entries(t) != 0 {
		t.Error("nothing needs the snapshot, and it is there")
	}
}

// TestMemoryStaysWhileHeld: what a snapshot has of processes, which was removed while a rollback to
// it had not been recorded, is there until the rollback has ended.
func TestMemoryStaysWhileHeld(t *testing.T) {
	s := &site{directory: t.TempDir()}
	store := s.open(t)
	id := s.make(t, store, snapshots.Record{Name: "one", ImageID: "image", Memory: &snapshots.Memory{Container: "c"}})
	_, release, err := store.Hold("one", "image")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := store.Memory(id); !ok {
		t.Error("a rollback holds the snapshot, and its memory is gone")
	}
	s.using, s.restoring = []string{id}, []string{id}
	release()
	if _, _, ok := store.Memory(id); !ok {
		t.Error("a container is to be started with the memory, which is gone")
	}
	s.restoring = nil
	store.Free()
	if _, _, ok := store.Memory(id); ok {
		t.Error("nothing needs the memory, and it is there")
	}
}
