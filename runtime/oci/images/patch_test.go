package images_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/test/wait"
)

// entryLayer is a layer of entries; a name that ends in a slash is a directory's.
func entryLayer(t testing.TB, headers ...tar.Header) v1.Layer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, header := range headers {
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return must(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }))(t)
}

func directoryEntry(name string, mode int64, owner int) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: owner, Gid: owner}
}

// TestImpliedDirectories: a layer without entries for the directories above its files changes no
// mode and owner of them.
func TestImpliedDirectories(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o644} }
	base := entryLayer(t, directoryEntry("tmp/", 0o1777, 0), directoryEntry("home/", 0o711, 0), directoryEntry("home/app/", 0o700, 1000),
		directoryEntry("gone/", 0o700, 7), directoryEntry("cleared/", 0o700, 7), directoryEntry("later/", 0o700, 7))
	implied := entryLayer(t, file("tmp/marker"), file("home/app/deep/file"), file(".wh.gone"), file("later/x"))
	above := entryLayer(t, file("gone/new"), file("home/app/other"), file("cleared/.wh..wh..opq"), file("cleared/new"), directoryEntry("later/", 0o750, 8))
	image := newImage(t, v1.Config{}, base, implied, above)
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	r := newRegistry(t)
	id := ensure(t, s, r.push(t, "implied:1", image))
	check := func(s *images.Store) {
		t.Helper()
		root := must(overlay.Overlay{Lower: hold(t, s, id).Layers}.Open())(t)
		defer func() { _ = root.Close() }()
		for name, want := range map[string]struct{ mode, owner uint32 }{
			"tmp": {0o1777, 0}, "home": {0o711, 0}, "home/app": {0o700, 1000}, "home/app/deep": {0o755, 0}, "gone": {0o755, 0},
			"cleared": {0o755, 0}, "later": {0o750, 8},
		} {
			var stat unix.Stat_t
			if err := unix.Fstatat(int(root.Fd()), name, &stat, 0); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if stat.Mode&0o7777 != want.mode || stat.Uid != want.owner {
				t.Errorf("%s has mode %o and owner %d, want %o and %d", name, stat.Mode&0o7777, stat.Uid, want.mode, want.owner)
			}
		}
		for _, name := range []string{"tmp/marker", "home/app/deep/file", "home/app/other", "gone/new", "cleared/new", "later/x"} {
			if err := unix.Faccessat(int(root.Fd()), name, unix.F_OK, 0); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	check(s)
	counted := s.Counted()
	wait.Until(t, "everything is safe on the disk", s.Safe)
	reopen := func() *images.Store {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, images.Options{Directory: directory})
		check(s)
		if now := s.Counted(); now != counted {
			t.Errorf("%d bytes are counted, want %d", now, counted)
		}
		return s
	}
	reopen()
	// After another start of the host the patch is made again.
	patches := must(filepath.Glob(filepath.Join(directory, "patches/*/layer.json")))(t)
	if len(patches) != 1 {
		t.Fatalf("patches %q", patches)
	}
	if err := os.WriteFile(patches[0], []byte(`{"boot":"another"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen()
	for _, i := range s.List() {
		if err := s.Remove(i.ID); err != nil {
			t.Fatal(err)
		}
	}
	must(s.Prune(t.Context(), true))(t)
	// The test holds the image.
	if patches := must(filepath.Glob(filepath.Join(directory, "patches/*")))(t); len(patches) != 1 {
		t.Errorf("patches of an image that is held: %q", patches)
	}
	ordinary := newImage(t, v1.Config{}, base, entryLayer(t, directoryEntry("tmp/", 0o1777, 0), file("tmp/marker")))
	ordinaryID := ensure(t, s, r.push(t, "ordinary:1", ordinary))
	if got := len(hold(t, s, ordinaryID).Layers); got != 2 {
		t.Errorf("an image without such directories has %d layers", got)
	}
}
