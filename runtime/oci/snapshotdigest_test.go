package oci_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/random"
)

func digestOf(t testing.TB, e *oci.Engine, name string) string {
	t.Helper()
	digest, err := e.DigestSnapshot(t.Context(), name)
	if err != nil || !strings.HasPrefix(digest, "sha256:") || len(digest) != 71 {
		t.Fatalf("the digest of snapshot %s is %q, %v", name, digest, err)
	}
	return digest
}

// takeAnother changes files of the container until a snapshot has none of the digests, and returns
// the digest that it has: a change may be one of times alone.
func (w *wanderer) takeAnother(name string, digests []string) string {
	w.t.Helper()
	for range 20 {
		w.change()
		take(w.t, w.e, w.id, name)
		if digest := digestOf(w.t, w.e, name); !slices.Contains(digests, digest) {
			return digest
		}
		if err := w.e.RemoveSnapshot(w.t.Context(), name); err != nil {
			w.t.Fatal(err)
		}
	}
	w.t.Fatalf("whatever changes, the digest of snapshot %s is one of %v", name, digests)
	return ""
}

// TestSnapshotDigest: a snapshot has the digest of the one that its container was rolled back to,
// also when the snapshots below were merged, and another one after a change. The digest stays, and
// comes back where it was lost.
func TestSnapshotDigest(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		w := newWanderer(t, e, random.New(t))
		w.begin("")
		digests := map[string]string{}
		for _, name := range []string{"one", "two", "three", "four"} {
			digests[name] = w.takeAnother(name, slices.Collect(maps.Values(digests)))
			w.digests[name] = w.digest
			w.rollback(name)
		}
		take(t, e, w.id, "four-again")
		closeEngine(t, e)
		s.snapshotter(t, oci.DigestedFailpoint, "digest", w.id, "four-again")
		e = s.mustOpen(t)
		w.e = e
		for again, name := range map[string]string{"four-again": "four", "one-again": "one", "two-again": "two"} {
			if name != "four" {
				w.rollback(name)
				take(t, e, w.id, again)
			}
			for range 2 { // made, and read
				if got := digestOf(t, e, again); got != digests[name] {
					t.Errorf("a snapshot after a rollback to %s has the digest %s, want %s", name, got, digests[name])
				}
			}
		}
		directories := filepath.Join(s.Directory, "images", "snapshots")
		for _, id := range entries(t, directories, "") {
			if err := os.Remove(filepath.Join(directories, id, "hashes")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
		for name, want := range digests {
			if got := digestOf(t, e, name); got != want {
				t.Errorf("the digest of %s is %s when it is made again, was %s", name, got, want)
			}
		}
		if _, err := e.DigestSnapshot(t.Context(), "none"); !errors.Is(err, engine.ErrNoSnapshot) {
			t.Errorf("the digest of no snapshot: %v", err)
		}
		removeSnapshots(t, e)
		removeAll(t, e)
		closeEngine(t, e)
	})
}
