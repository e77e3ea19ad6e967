package oci_test

import (
	"archive/tar"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
)

// TestMountTargets: what the engine mounts in every container costs nothing on its disk, and hides
// nothing of the image.
func TestMountTargets(t *testing.T) {
	for _, handler := range runtimes(t) {
		t.Run(handler, func(t *testing.T) {
			s := newSite(t, handler)
			e := s.mustOpen(t)
			defer closeEngine(t, e)
			imageID := loadProbe(t, e)
			if err := e.EnsureDirectory(t.Context(), "tools", imageID, "/tmp", nil); err != nil {
				t.Fatal(err)
			}
			spec := probe(imageID, "sleep")
			spec.Mounts = []engine.Mount{{Directory: "tools", Target: "/opt/tools"}}
			id := start(t, e, spec)
			if written := entries(t, s.Directory, "containers/"+id+"/disk/upper"); len(written) != 0 {
				t.Errorf("the start of the container has written %q to its disk", written)
			}

			linked := loadProbeOf(t, e, "linked",
				layerOf(t, tar.Header{Name: "config/", Mode: 0o750, Typeflag: tar.TypeDir}, nil),
				layerOf(t, tar.Header{Name: "config/own", Mode: 0o644, Size: 3, Typeflag: tar.TypeReg}, []byte("own")),
				layerOf(t, tar.Header{Name: "etc", Linkname: "config", Typeflag: tar.TypeSymlink}, nil))
			if got, ended := output(t, e, probe(linked, "cat", "/etc/own", "/config/hosts")); !strings.Contains(got, "own") || !strings.Contains(got, "localhost") {
				t.Errorf("an image whose /etc is a link has %q: %+v", got, ended)
			}
			removeAll(t, e)
		})
	}
}
