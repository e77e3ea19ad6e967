package files_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestMakeDirectories(t *testing.T) {
	f, root := newFiles(t)
	must(t, f.MakeDirectories(map[string]files.Permission{
		"a/b/c":    {Owner: "4242", Group: "4243", Mode: new(2750)},
		"a/b":      {},
		"~/inside": {Mode: new(700)},
	}))
	wantEqual(t, "named", describe(t, f, "a/b/c"), facts{Owner: "4242", Group: "4243", Mode: 2750})
	wantEqual(t, "parent", describe(t, f, "a"), facts{Owner: "root", Group: "root", Mode: 755})
	wantEqual(t, "in the home", describe(t, f, "home/inside"), facts{Owner: "root", Group: "root", Mode: 700})

	write(t, filepath.Join(root, "a/b/c/file"), "stays")
	must(t, f.MakeDirectories(map[string]files.Permission{"a/b/c": {}}))
	wantEqual(t, "again, nothing asked", describe(t, f, "a/b/c"), facts{Owner: "4242", Group: "4243", Mode: 2750})
	must(t, f.MakeDirectories(map[string]files.Permission{"a/b/c": {Mode: new(755)}}))
	wantEqual(t, "again, mode asked", describe(t, f, "a/b/c"), facts{Owner: "4242", Group: "4243", Mode: 755})
	wantEqual(t, "content", read(t, filepath.Join(root, "a/b/c/file")), "stays")
}

func TestMakeDirectoriesTakesALinkToADirectory(t *testing.T) {
	f, root := newFiles(t)
	mkdir(t, filepath.Join(root, "dir"))
	must(t, os.Symlink("dir", filepath.Join(root, "link")))
	must(t, f.MakeDirectories(map[string]files.Permission{"link": {}, "link/below": {}}))
	wantEqual(t, "made in the target", exists(t, filepath.Join(root, "dir/below")), true)
}

func TestMakeDirectoriesChecksAllBeforeTheFirstChange(t *testing.T) {
	tests := []struct {
		name  string
		path  string
		ask   files.Permission
		kind  files.Kind
		parts []string
	}{
		{"a file", "file", files.Permission{}, files.KindConflict, []string{"/file", "not a directory"}},
		{"below a file", "file/x/y", files.Permission{}, files.KindConflict, []string{"/file", "not a directory"}},
		{"a broken link", "broken/x", files.Permission{}, files.KindConflict, []string{"/broken", "link to nothing"}},
		{"bad mode", "x", files.Permission{Mode: new(999)}, files.KindInvalid, []string{"/x", "mode", "999"}},
		{"unknown owner", "x", files.Permission{Owner: "no-such-user"}, files.KindInvalid, []string{"/x", "owner"}},
		{"empty path", "", files.Permission{}, files.KindInvalid, []string{"must not be empty"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "file"), "")
			must(t, os.Symlink("nowhere", filepath.Join(root, "broken")))
			err := f.MakeDirectories(map[string]files.Permission{"a": {}, test.path: test.ask})
			wantError(t, err, test.kind, test.parts...)
			wantEqual(t, "the first was made", exists(t, filepath.Join(root, "a")), false)
		})
	}
}

func TestReadOnlyAndFullDisks(t *testing.T) {
	f, _ := newFiles(t)
	t.Run("no inode left", func(t *testing.T) {
		disk := mountTmpfs(t, "nr_inodes=2")
		must(t, f.MakeDirectories(map[string]files.Permission{disk + "/a": {}}))
		wantError(t, f.MakeDirectories(map[string]files.Permission{disk + "/b": {}}), files.KindNoSpace, disk+"/b")
	})
	t.Run("no inode left for the innermost", func(t *testing.T) {
		disk := mountTmpfs(t, "nr_inodes=4")
		must(t, f.MakeDirectories(map[string]files.Permission{disk + "/a": {}}))
		wantError(t, f.MakeDirectories(map[string]files.Permission{disk + "/a/b/c/d": {}}), files.KindNoSpace, disk+"/a/b/c/d")
		wantEqual(t, "what was there exists", exists(t, disk+"/a"), true)
		wantEqual(t, "a parent of nothing exists", exists(t, disk+"/a/b"), false)
	})
	t.Run("read-only", func(t *testing.T) {
		disk := mountTmpfs(t, "")
		write(t, disk+"/file", "old")
		must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		_, err := f.Begin(files.UploadMeta{Path: disk + "/new"})
		for name, err := range map[string]error{
			"mkdir":   f.MakeDirectories(map[string]files.Permission{disk + "/b": {}}),
			"chmod":   f.SetPermissions(map[string]files.Permission{disk + "/file": {Mode: new(600)}}),
			"remove":  f.RemoveFiles([]string{disk + "/file"}),
			"replace": f.Replace(map[string]files.Replacement{disk + "/file": {Old: "old", New: "new"}}),
			"upload":  err,
		} {
			t.Run(name, func(t *testing.T) { wantError(t, err, files.KindPermission, disk, "read-only") })
		}
	})
}
