package images_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// smallDisk is a directory that is a file system of its own, of the size, which further options of
// tmpfs may follow after a comma.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	directory := t.TempDir()
	if err := unix.Mount("images-test", directory, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(directory, "images")
}

// TestFullDisk: images leave a part of the disk free, and a disk that has no more is the host's
// failure, not the image's.
func TestFullDisk(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{}, randomLayer(t, 39<<20)) // of 40, a twentieth of which stays free
	ref := r.push(t, "image:1", image)
	archive := saved(t, map[string]v1.Image{"loaded:1": image})
	directory := smallDisk(t, "40m")
	s := open(t, images.Options{Directory: directory})
	_, pulled := s.Ensure(t.Context(), ref, nil, nil)
	_, loaded := s.Load(t.Context(), bytes.NewReader(archive), nil)
	for name, err := range map[string]error{"pull": pulled, "load": loaded} {
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, engine.ErrImage) || !strings.Contains(err.Error(), "free, of which images leave 2.0 MiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantOnly(t, directory, 0, 0, 0)

	// What is not used makes room.
	s = open(t, images.Options{Directory: smallDisk(t, "40m")})
	ensure(t, s, r.push(t, "first:1", newImage(t, v1.Config{}, randomLayer(t, 20<<20))))
	other := r.push(t, "other:1", newImage(t, v1.Config{}, randomLayer(t, 25<<20)))
	ensure(t, s, other)
	if list := s.List(); len(list) != 1 {
		t.Errorf("images %+v", list)
	}
}

// TestNoInodes: a disk that has room but no inodes is full too, and what is not used makes room.
func TestNoInodes(t *testing.T) {
	manyFiles := func(directory string) v1.Image {
		contents := map[string]string{}
		for i := range 700 {
			contents[fmt.Sprintf("%s/%d", directory, i)] = ""
		}
		return newImage(t, v1.Config{}, newLayer(t, contents))
	}
	r := newRegistry(t)
	s := open(t, images.Options{Directory: smallDisk(t, "40m,nr_inodes=1000")})
	ensure(t, s, r.push(t, "unused:1", manyFiles("a")))
	used := ensure(t, s, r.push(t, "used:1", manyFiles("b")))
	if list := s.List(); len(list) != 1 || list[0].ID != used {
		t.Errorf("images %+v", list)
	}
	hold(t, s, used)
	_, err := s.Ensure(t.Context(), r.push(t, "other:1", manyFiles("c")), nil, nil)
	if says := "has 50 inodes free, of which images leave 50"; !errors.Is(err, unix.ENOSPC) || errors.Is(err, engine.ErrImage) ||
		!strings.Contains(err.Error(), says) {
		t.Errorf("pull: %v", err)
	}
}

// TestFullDiskForRecords: the records of an image leave a part of the disk free as its layers do,
// and nothing of one stays that cannot be written.
func TestFullDiskForRecords(t *testing.T) {
	r := newRegistry(t)
	layer := randomLayer(t, 10)
	image := newImage(t, v1.Config{}, layer)
	first := r.push(t, "image:1", image)
	sameImage := r.push(t, "image:2", image)
	sameLayer := r.push(t, "image:3", newImage(t, v1.Config{User: "1"}, layer))
	directory := smallDisk(t, "40m") // a twentieth of which stays free
	s := open(t, images.Options{Directory: directory})
	hold(t, s, ensure(t, s, first)) // it makes no room
	wait.Until(t, "everything is safe on the disk", s.Safe)

	fill(t, filepath.Dir(directory), 1<<20)
	_, err := s.Ensure(t.Context(), sameLayer, nil, nil)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(fmt.Sprint(err), "free, of which images leave 2.0 MiB") {
		t.Errorf("configuration: %v", err)
	}
	fill(t, filepath.Dir(directory), 0)
	_, err = s.Ensure(t.Context(), sameImage, nil, nil)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("name: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(directory, "making")); err != nil || len(entries) != 0 {
		t.Errorf("being made: %v, %v", entries, err)
	}
	wantOnly(t, directory, 1, 1, 1)
}

// fill leaves so many bytes of a file system free.
func fill(t *testing.T, directory string, free int64) {
	t.Helper()
	var disk unix.Statfs_t
	if err := unix.Statfs(directory, &disk); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(directory, fmt.Sprintf("filler-%d", free))
	if err := os.WriteFile(filler, make([]byte, int64(disk.Bavail)*disk.Bsize-free), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDeepLayers: layers that are deeper than this process may have files open are removed, half
// made or complete.
func TestDeepLayers(t *testing.T) {
	deep := strings.Repeat("d/", 500)
	r := newRegistry(t)
	good := r.push(t, "good:1", newImage(t, v1.Config{}, newLayer(t, map[string]string{deep + "file": "x"})))
	bad := r.push(t, "bad:1", newImage(t, v1.Config{}, newLayer(t, map[string]string{deep + "file": "y", "../f": "x"})))
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	limitFiles(t, 200)

	_, err := s.Ensure(t.Context(), bad, nil, nil)
	wantImageError(t, err, `".."`)
	wantOnly(t, directory, 0, 0, 0)

	ensure(t, s, good)
	if freed := must(s.Prune(t.Context(), true))(t); freed == 0 {
		t.Error("nothing was freed")
	}
	trashIsEmpty := func() bool {
		entries, err := os.ReadDir(filepath.Join(directory, "trash"))
		return err == nil && len(entries) == 0
	}
	if !trashIsEmpty() {
		t.Error("the trash is not empty")
	}

	ensure(t, s, good)
	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, directory, "layers/*/layer.json", "")
	open(t, images.Options{Directory: directory})
	wait.Until(t, "the trash is empty", trashIsEmpty)
}

// limitFiles bounds the descriptors of this process until the test ends.
func limitFiles(t *testing.T, files uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
}
