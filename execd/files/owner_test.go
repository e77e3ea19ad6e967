package files_test

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"sandbox.internal/execd/files"
)

// other is an owner that is not the daemon.
var other = files.Owner{UID: 1234, GID: 2345}

func wantOwner(t *testing.T, owner files.Owner, paths ...string) {
	t.Helper()
	for _, path := range paths {
		info, err := os.Lstat(path)
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		wantEqual(t, path, files.Owner{UID: st.Uid, GID: st.Gid}, owner)
	}
}

func TestMakeDirectoryForOwner(t *testing.T) {
	f, root := newFiles(t)
	mkdir(t, filepath.Join(root, "real"))
	must(t, os.Symlink("real", filepath.Join(root, "link")))
	made, err := f.MakeDirectory("link/a/b", other)
	must(t, err)
	wantEqual(t, "made", made, true)
	wantOwner(t, other, root+"/real/a", root+"/real/a/b")
	wantOwner(t, files.Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, root+"/real")
	made, err = f.MakeDirectory("real/a", files.Owner{UID: 1, GID: 1})
	must(t, err)
	wantEqual(t, "made", made, false)
	wantOwner(t, other, root+"/real/a")
	write(t, root+"/file", "")
	_, err = f.MakeDirectory("file", other)
	wantError(t, err, files.KindInvalid, "not a directory")
	_, err = f.MakeDirectory("file/below", other)
	wantError(t, err, files.KindConflict, "not a directory")
}

// TestMakeDirectoryWhileExchanged: what is exchanged for a link while it is being made does not
// give the owner what the link leads to.
func TestMakeDirectoryWhileExchanged(t *testing.T) {
	f, root := newFiles(t)
	write(t, root+"/victim/secret", "")
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if os.Rename(root+"/a", root+"/away") == nil {
					_ = os.Symlink("victim", root+"/a")
					_ = os.Remove(root + "/a")
					_ = os.RemoveAll(root + "/away")
				}
			}
		}
	})
	for range 2000 {
		_, _ = f.MakeDirectory("a/secret", other) // fails when the attacker is fast
	}
	close(stop)
	attacker.Wait()
	wantOwner(t, files.Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, root+"/victim", root+"/victim/secret")
}

func TestUploadForOwner(t *testing.T) {
	f, root := newFiles(t)
	upload, err := f.Begin(files.UploadMeta{
		Path: "x/y/file", Permission: files.Permission{Owner: "1234", Group: "2345"}, Parents: &other,
	})
	must(t, err)
	_, err = upload.Write([]byte("content"))
	must(t, err)
	_, err = upload.Commit()
	must(t, err)
	wantOwner(t, other, root+"/x", root+"/x/y", root+"/x/y/file")
}

func TestMoveOver(t *testing.T) {
	f, root := newFiles(t)
	write(t, root+"/src", "new")
	write(t, root+"/dest", "old")
	must(t, f.MoveOver(t.Context(), "src", "dest", other))
	wantEqual(t, "content", read(t, root+"/dest"), "new")
	must(t, f.MoveOver(t.Context(), "dest", "a/b", other))
	wantOwner(t, other, root+"/a")
	mkdir(t, root+"/empty")
	must(t, f.MoveOver(t.Context(), "a", "empty", other))
	wantEqual(t, "content", read(t, root+"/empty/b"), "new")
	mkdir(t, root+"/dir")
	write(t, root+"/file", "")
	wantError(t, f.MoveOver(t.Context(), "dir", "empty", other), files.KindConflict, "files in it")
	wantError(t, f.MoveOver(t.Context(), "file", "dir", other), files.KindConflict, "only a directory")
	wantError(t, f.MoveOver(t.Context(), "dir", "file", other), files.KindConflict, "does not replace")
	wantError(t, f.MoveOver(t.Context(), "dir", "dir/below", other), files.KindInvalid, "into itself")
	wantError(t, f.MoveOver(t.Context(), "missing", "new/a", other), files.KindNotFound, "missing")
	wantEqual(t, "made for nothing", exists(t, root+"/new"), false)
}

// TestMoveOverBetweenFileSystems: the copy replaces what is at the target, and nothing is left.
func TestMoveOverBetweenFileSystems(t *testing.T) {
	f, root := newFiles(t)
	mounted := mountTmpfs(t, "size=1m")
	write(t, root+"/src", "new")
	write(t, mounted+"/dest", "old")
	must(t, f.MoveOver(t.Context(), "src", mounted+"/dest", other))
	wantEqual(t, "content", read(t, mounted+"/dest"), "new")
	write(t, root+"/tree/file", "")
	write(t, mounted+"/full/file", "kept")
	wantError(t, f.MoveOver(t.Context(), "tree", mounted+"/full", other), files.KindConflict, "")
	wantEqual(t, "content", read(t, mounted+"/full/file"), "kept")
	wantEqual(t, "source", exists(t, root+"/tree/file"), true)
	wantNoTemporary(t, mounted)
}

func TestRemove(t *testing.T) {
	f, root := newFiles(t)
	write(t, root+"/tree/a/b", "")
	write(t, root+"/kept", "")
	must(t, os.Symlink("kept", root+"/link"))
	for _, path := range []string{"tree", "tree", "link", "kept/below"} {
		must(t, f.Remove(t.Context(), path))
	}
	wantEqual(t, "tree", exists(t, root+"/tree"), false)
	wantEqual(t, "kept", exists(t, root+"/kept"), true)
	wantError(t, f.Remove(t.Context(), "/sys"), files.KindInvalid, "must not be removed")
}
