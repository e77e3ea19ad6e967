package oci_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// TestMountsMadeLater: what is mounted on the host after the keeper was started is what a container
// gets, as a directory and as a file.
func TestMountsMadeLater(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	directory := t.TempDir()
	if err := unix.Mount("oci-test", directory, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(directory, "note"), []byte("mounted later"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := probe(imageID, "cat", "/directory/note", "/file")
	spec.Mounts = []engine.Mount{
		{HostPath: directory, Target: "/directory", ReadOnly: true}, {HostPath: filepath.Join(directory, "note"), Target: "/file"},
	}
	if got, _ := output(t, e, spec); got != "mounted latermounted later" {
		t.Errorf("the container read %q", got)
	}
	s.checkNoMounts(t)
}

// TestSubPathStaysInside: a container cannot make another one's mount of a part of a volume show
// anything else.
func TestSubPathStaysInside(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	if _, err := e.MakeVolume(t.Context(), "shared", nil); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.Directory, "volumes", "shared", "data")
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "note"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(data, "inside"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "inside", "note"), []byte("inside"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"absolute": secret, "upwards": "../../../../../../../../../.." + secret, "proc": "/proc/1/root", "good": "inside",
	} {
		if err := os.Symlink(target, filepath.Join(data, link)); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(sub string) engine.ContainerSpec {
		spec := probe(imageID, "cat", "/data/note")
		spec.Mounts = []engine.Mount{{Volume: "shared", SubPath: sub, Target: "/data"}}
		return spec
	}
	for _, link := range []string{"absolute", "upwards", "proc", "inside/note"} {
		if _, err := e.Create(t.Context(), mount(link)); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("sub path %s: %v, want ErrInvalid", link, err)
		}
	}
	if got, _ := output(t, e, mount("good")); got != "inside" {
		t.Errorf("through a link that stays inside: %q", got)
	}

	// The link is put there after the container was created.
	id, err := e.Create(t.Context(), mount("inside"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(data, "inside"), filepath.Join(data, "before")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(data, "inside")); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("start with a link that leads out: %v, want ErrInvalid", err)
	}
	removeAll(t, e)
	s.checkNoMounts(t)
}

// TestHostPathLeavesTheHostsMounts: a container with a host path takes nothing away that is mounted
// below it on the host, where mounts are shared, as they are on most hosts.
func TestHostPathLeavesTheHostsMounts(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	directory := t.TempDir()
	below := filepath.Join(directory, "below")
	for _, path := range []string{directory, below} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("oci-test", path, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", path, err)
			}
		}()
	}
	note := filepath.Join(below, "note")
	if err := os.WriteFile(note, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := probe(imageID, "sleep")
	spec.Mounts = []engine.Mount{{HostPath: directory, Target: "/directory", ReadOnly: true}}
	id := start(t, e, spec)
	remove(t, e, id)
	s.checkNoMounts(t)
	if _, err := os.Stat(note); err != nil {
		t.Errorf("on the host, after the container: %v", err)
	}
}
