package oci_test

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// TestVolumesTakeContent: a volume that is empty gets what the image has where it is mounted, as on
// Docker, unless another container has it.
func TestVolumesTakeContent(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	entry := func(name string, kind byte, mode int64) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Mode: mode, Uid: 1000, Gid: 1001}
	}
	seed := entry("data/seed", tar.TypeReg, 0o640)
	seed.Size = 4
	imageID := loadProbeOf(t, e, "volumes", layerOf(t, entry("data/", tar.TypeDir, 0o2750), nil), layerOf(t, seed, []byte("seed")),
		layerOf(t, entry("empty/", tar.TypeDir, 0o700), nil))
	with := func(volume, target, sub string) engine.ContainerSpec {
		spec := probe(imageID, "cat", "/data/seed")
		spec.Mounts = []engine.Mount{{Volume: volume, Target: target, SubPath: sub}}
		return spec
	}
	data := func(volume string) string { return filepath.Join(s.Directory, "volumes", volume, "data") }
	owned := func(volume string, mode uint32) {
		t.Helper()
		var stat unix.Stat_t
		if err := unix.Stat(data(volume), &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Mode&0o7777 != mode || mode != 0o755 && (stat.Uid != 1000 || stat.Gid != 1001) {
			t.Errorf("volume %s has mode %o and owner %d:%d", volume, stat.Mode&0o7777, stat.Uid, stat.Gid)
		}
	}
	if got, ended := output(t, e, with("filled", "/data", "")); got != "seed" {
		t.Errorf("the container read %q: %+v", got, ended)
	}
	owned("filled", 0o2750)

	// What has something in it stays as it is.
	if err := os.WriteFile(filepath.Join(data("filled"), "seed"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := output(t, e, with("filled", "/data", "")); got != "mine" {
		t.Errorf("the second container read %q", got)
	}
	output(t, e, with("elsewhere", "/nothing", ""))
	owned("elsewhere", 0o755)

	// An empty directory gives its owner. While a container has the volume, it is left as it is.
	first := with("owned", "/empty", "")
	first.Name = "volume-first"
	if _, err := e.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	owned("owned", 0o700)
	output(t, e, with("owned", "/data", ""))
	owned("owned", 0o700)
	if left, err := filepath.Glob(filepath.Join(s.Directory, "volumes", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	removeAll(t, e)
}

// TestLinksAtTargets: Create refuses a mount where the image's links lead, and fills no volume from
// there.
func TestLinksAtTargets(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbeOf(t, e, "links", layerOf(t, tar.Header{Name: "x/y", Typeflag: tar.TypeSymlink, Linkname: "/dev"}, nil))
	spec := probe(imageID, "sleep")
	spec.Mounts = []engine.Mount{{Volume: "link", Target: "/x/y"}}
	_, err := e.Create(t.Context(), spec)
	var target *engine.TargetError
	if !errors.As(err, &target) || target.Target != "/x/y" || !strings.Contains(target.Rule, `to "/dev"`) {
		t.Errorf("%v", err)
	}
	if list, err := e.List(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}
