package oci_test

import (
	"errors"
	"os"
	"path/filepath"
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
			w.change()
			take(t, e, w.id, name)
			w.digests[name], digests[name] = w.digest, digestOf(t, e, name)
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
		seen := map[string]string{}
		for name, digest := range digests {
			if other := seen[digest]; other != "" {
				t.Errorf("the snapshots %s and %s have the same digest", name, other)
			}
			seen[digest] = name
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
