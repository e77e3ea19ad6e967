package placement_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/placement"
)

// TestMakeSpread: a directory is made with the flag where the file system is ext4, and one that is
// there keeps what it has.
func TestMakeSpread(t *testing.T) {
	path := filepath.Join(t.TempDir(), "above", "spread")
	for range 2 {
		if err := placement.MakeSpread(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(path, "file")); err != nil {
		t.Fatal(err)
	}
	var info unix.Statfs_t
	if err := unix.Statfs(path, &info); err != nil {
		t.Fatal(err)
	}
	flags, err := flagsOf(t, path)
	spreads := err == nil && flags&0x20000 != 0
	if onExt4 := info.Type == unix.EXT4_SUPER_MAGIC; spreads != onExt4 {
		t.Fatalf("directories are spread: %v (flags %#x, %v) on a file system of the type %#x", spreads, flags, err, info.Type)
	}
}

// TestMakeSpreadOfALink: a directory may be a symbolic link, and its target is left alone.
func TestMakeSpreadOfALink(t *testing.T) {
	target, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := placement.MakeSpread(link, 0o700); err != nil {
		t.Error(err)
	}
	if flags, err := flagsOf(t, target); err == nil && flags&0x20000 != 0 {
		t.Errorf("the target of a link has the flags %#x", flags)
	}
}

func flagsOf(t *testing.T, path string) (int, error) {
	t.Helper()
	directory, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = directory.Close() }()
	return unix.IoctlGetInt(int(directory.Fd()), unix.FS_IOC_GETFLAGS)
}
