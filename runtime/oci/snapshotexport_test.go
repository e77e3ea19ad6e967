package oci_test

import (
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/oci"
	"sandbox.internal/runtime/oci/images"
)

// TestExportKilled: a service that is killed while it makes an image of a snapshot leaves no image
// of the name, or the whole one, and the next export succeeds.
func TestExportKilled(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	id := start(t, e, probe(loadProbe(t, e), "tree", "/data"))
	awaitLog(t, e, id, "made")
	taken := take(t, e, id, "taken")
	before := s.imageNames(t, e)
	closeEngine(t, e)
	const ref = "sandbox/exported:1"
	// The layer stays for the exports after the first one.
	for _, failpoint := range []string{images.UnpackedFailpoint, images.LayeredFailpoint, images.RecordedFailpoint, oci.ExportedFailpoint} {
		named := failpoint == oci.ExportedFailpoint
		s.snapshotter(t, failpoint, "export", ref, taken.Name)
		e = s.mustOpen(t)
		if got := s.imageNames(t, e); slices.Contains(got, ref) != named {
			t.Errorf("%s: the names of images are %q", failpoint, got)
		}
		if _, err := e.ExportSnapshot(t.Context(), taken.Name, ref); err != nil {
			t.Fatalf("%s: the next export: %v", failpoint, err)
		}
		if err := e.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if _, err := e.PruneImages(t.Context(), false); err != nil {
			t.Error(err)
		}
		if got := s.imageNames(t, e); !slices.Equal(got, before) {
			t.Errorf("%s: the names of images are %q, want %q", failpoint, got, before)
		}
		closeEngine(t, e)
	}
	e = s.mustOpen(t)
	removeSnapshots(t, e)
	if err := e.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// imageNames returns the names of images, as a request would have them.
func (s site) imageNames(t *testing.T, e *oci.Engine) (names []string) {
	t.Helper()
	list, err := e.ListImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range list {
		for _, name := range image.Names {
			names = append(names, strings.TrimPrefix(name, "docker.io/"))
		}
	}
	slices.Sort(names)
	return names
}
