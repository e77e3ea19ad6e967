package oci_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// takeUnchanged takes snapshots until one has found nothing changed since the one before, and
// removes all but these two.
func (w *wanderer) takeUnchanged() (before, last engine.Snapshot) {
	w.t.Helper()
	last = take(w.t, w.e, w.id, "s0")
	number := 0
	wait.Until(w.t, "a snapshot finds nothing changed", func() bool {
		if before.Name != "" {
			if err := w.e.RemoveSnapshot(w.t.Context(), before.Name); err != nil {
				w.t.Fatal(err)
			}
		}
		number++
		before, last = last, take(w.t, w.e, w.id, "s"+strconv.Itoa(number))
		return last.Exclusive <= 1024 && last.Frozen == 0
	})
	return before, last
}

// has reports whether there is a snapshot of the name.
func (w *wanderer) has(name string) bool {
	w.t.Helper()
	all, err := w.e.ListSnapshots(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(one engine.Snapshot) bool { return one.Name == name })
}

// exclusive returns what a snapshot is counted with.
func (w *wanderer) exclusive(name string) int64 {
	w.t.Helper()
	all, err := w.e.ListSnapshots(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range all {
		if one.Name == name {
			return one.Exclusive
		}
	}
	w.t.Fatalf("there is no snapshot %s", name)
	return 0
}

// TestSnapshotOfNoChange: a snapshot of a container that has written nothing since the last one has
// the tree of that, and is as good as any: it keeps the tree when the last one is removed, and is
// counted with it then, it has the digest, and containers begin with it and are rolled back to it.
func TestSnapshotOfNoChange(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		w := newWanderer(t, e, random.New(t))
		w.begin("")
		w.change()
		before, last := w.takeUnchanged()
		name := last.Name
		w.digests[name] = w.digest
		if last.Bytes != before.Bytes || last.Files != before.Files || last.ImageID != before.ImageID {
			t.Errorf("a snapshot of no change is %+v, and the one before %+v", last, before)
		}
		digest := digestOf(t, e, name)
		want := w.exclusive(before.Name)
		if err := e.RemoveSnapshot(t.Context(), before.Name); err != nil {
			t.Fatal(err)
		}
		if got := w.exclusive(name); got != want+last.Exclusive {
			t.Errorf("the snapshot is counted with %d bytes when the one is removed whose tree it has, want its %d more than %d", got, want, last.Exclusive)
		}
		closeEngine(t, e)
		for _, failpoint := range []string{oci.CopiedFailpoint, snapshots.SharedFailpoint, oci.TakenFailpoint} {
			s.snapshotter(t, failpoint, "take", w.id, failpoint)
			e = s.mustOpen(t)
			if got := digestOf(t, e, name); got != digest {
				t.Errorf("%s: the digest is %s after the kill, was %s", failpoint, got, digest)
			}
			w.e = e
			taken, want := w.has(failpoint), failpoint == oci.TakenFailpoint
			if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); taken != want || len(directories) > 3 {
				t.Errorf("%s: the snapshot is there: %v, want %v; directories %v", failpoint, taken, want, directories)
			}
			closeEngine(t, e)
		}
		e = s.mustOpen(t)
		w.e = e
		if got := digestOf(t, e, name); got != digest {
			t.Errorf("the digest is %s after a restart, was %s", got, digest)
		}
		w.change()
		w.rollback(name)
		next := take(t, e, w.id, "next")
		w.digests["next"] = w.digest
		if got := digestOf(t, e, "next"); got != digest {
			t.Errorf("a snapshot after a rollback has the digest %s, want %s (%+v)", got, digest, next)
		}
		w.begin(name)
		if err := e.RemoveSnapshot(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		w.rollback("next")
		removeSnapshots(t, e)
		removeAll(t, e)
		if left := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(left) > 0 {
			t.Errorf("the directory of snapshots has %v", left)
		}
		closeEngine(t, e)
	})
}
