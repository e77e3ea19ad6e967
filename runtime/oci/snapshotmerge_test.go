package oci_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/random"
)

// TestLongChain: a container is rolled back to its last snapshot, changed and kept so often that
// what it lies on is merged several times, and in the long form far more often than the kernel has
// layers. Each snapshot has its files, and the disk has them once.
func TestLongChain(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	w := newWanderer(t, e, random.New(t))
	w.begin("")
	rounds := random.Long(80, 300)
	trees := filepath.Join(s.Directory, "images", "snapshots")
	most := 0
	for i := range rounds {
		if i%10 == 0 {
			w.change()
		}
		name := snapshotOf(i)
		w.digests[name] = w.digest
		take(t, e, w.id, name)
		w.rollback(name)
		if i >= 10 { // the container lies on it
			if err := e.RemoveSnapshot(t.Context(), snapshotOf(i-10)); err != nil {
				t.Fatal(err)
			}
			delete(w.digests, snapshotOf(i-10))
		}
		most = max(most, len(entries(t, trees, "")))
	}
	// The container lies on at most 32 and one, another one was merged, and 10 are listed.
	if most > 33+2+10 {
		t.Errorf("%d snapshots were kept at once", most)
	}
	same := 0
	err := e.CompareSnapshots(t.Context(), snapshotOf(rounds-10), snapshotOf(rounds-1), func(engine.FileChange) error {
		same++
		return nil
	})
	if err != nil || same > 0 {
		t.Errorf("the snapshots, of the same files, differ in %d files, %v", same, err)
	}
	checkCounted(t, e, trees)
	for _, ago := range []int{10, 6, 1} {
		w.begin(snapshotOf(rounds - ago))
	}
	removeAll(t, e)
	checkCounted(t, e, trees)
	removeSnapshots(t, e)
	if left := entries(t, trees, ""); len(left) > 0 {
		t.Errorf("the directory of snapshots has %v", left)
	}
}

// snapshotOf returns the name of the snapshot of a round of TestLongChain.
func snapshotOf(round int) string { return "s" + strconv.Itoa(round) }

// checkCounted demands that the snapshots that are listed are counted with what all have of the
// disk, once.
func checkCounted(t *testing.T, e *oci.Engine, trees string) {
	t.Helper()
	var has, counted int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(trees, func(path string, entry fs.DirEntry, err error) error {
		var info unix.Stat_t
		if err = errors.Join(err, unix.Lstat(path, &info)); err != nil {
			return err
		}
		below, _ := filepath.Rel(trees, path)
		isRoot := entry.Name() == "tree" && filepath.Dir(filepath.Dir(below)) == "."
		if _, inTree := cutTree(below); inTree && !isRoot && !seen[info.Ino] {
			seen[info.Ino] = true
			has += max(512, info.Blocks*512)
		}
		if name := entry.Name(); strings.Count(below, "/") == 1 && (name == "index" || name == "hashes") {
			has += info.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := e.ListSnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		counted += one.Exclusive
	}
	if counted < has || counted > 2*has+64<<10 {
		t.Errorf("%d bytes are counted, and the disk has %d", counted, has)
	}
}

// cutTree returns the name of a file in the tree of a snapshot.
func cutTree(below string) (name string, ok bool) {
	for parent := below; parent != "."; parent = filepath.Dir(parent) {
		if filepath.Base(parent) == "tree" && filepath.Dir(filepath.Dir(parent)) == "." {
			name, err := filepath.Rel(parent, below)
			return name, err == nil
		}
	}
	return "", false
}

// TestMergeKilled: a service that is killed when it has merged what a container lies on leaves
// nothing of it, and the snapshot can be taken again.
func TestMergeKilled(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		s.Chain = 2
		e := s.mustOpen(t)
		w := newWanderer(t, e, random.New(t))
		w.begin("")
		for _, name := range []string{"one", "two"} {
			w.change()
			take(t, e, w.id, name)
			w.digests[name] = w.digest
			w.rollback(name)
		}
		w.change()
		want := w.digest
		closeEngine(t, e)
		s.snapshotter(t, oci.MergedFailpoint, "take", w.id, "three")
		e = s.mustOpen(t)
		if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(directories) != 2 {
			t.Errorf("there are the directories %v", directories)
		}
		take(t, e, w.id, "three")
		w.e, w.digests["three"] = e, want
		for _, name := range []string{"one", "two"} {
			if err := e.RemoveSnapshot(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		w.begin("three")
		if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(directories) != 2 {
			t.Errorf("of the snapshot and the merged one there are %v", directories)
		}
		removeSnapshots(t, e)
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestChainOfOthers: what removed snapshots have that a container lies on counts for its next one.
func TestChainOfOthers(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := start(t, e, probe(loadProbe(t, e), "many", "/data", "1", "5000000"))
	awaitLog(t, e, id, "made")
	take(t, e, id, "one")
	if err := e.Rollback(t.Context(), id, "one"); err != nil {
		t.Fatal(err)
	}
	removeSnapshots(t, e)
	_, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: "two", MaxBytes: 5_000_000})
	if !errors.Is(err, engine.ErrSnapshotTooLarge) {
		t.Errorf("a snapshot above a removed one of more than the bound: %v", err)
	}
	if two := take(t, e, id, "two"); two.Bytes != 0 || two.Exclusive < 5_000_000 {
		t.Errorf("the snapshot is %+v", two)
	}
	remove(t, e, id)
	removeSnapshots(t, e)
	if left := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(left) > 0 {
		t.Errorf("the directory of snapshots has %v", left)
	}
}
