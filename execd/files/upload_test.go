package files_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
	"sandbox.internal/test/wait"
)

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func upload(t testing.TB, f *files.Files, meta files.UploadMeta, content []byte) (files.Uploaded, error) {
	t.Helper()
	up, err := f.Begin(meta)
	if err != nil {
		return files.Uploaded{}, err
	}
	defer up.Abort()
	if _, err := io.Copy(up, bytes.NewReader(content)); err != nil {
		return files.Uploaded{}, err
	}
	return up.Commit()
}

func TestUploadSizes(t *testing.T) {
	const block = 256 << 10
	random := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{0, 1, block - 1, block, block + 1, 5*block + 7} {
		f, root := newFiles(t)
		content := make([]byte, size)
		random.Read(content)
		got, err := upload(t, f, files.UploadMeta{Path: "new/dir/file", Digest: digestOf(content)}, content)
		must(t, err)
		path := filepath.Join(root, "new/dir/file")
		wantEqual(t, "result", got, files.Uploaded{Path: path, Size: int64(size), Digest: digestOf(content)})
		if read(t, path) != string(content) {
			t.Errorf("content of %d bytes differs", size)
		}
		wantNoTemporary(t, root)
	}
}

func TestUploadPermissions(t *testing.T) {
	old := files.Permission{Owner: "4242", Group: "4243", Mode: new(751)}
	tests := []struct {
		name  string
		there bool
		ask   files.Permission
		want  facts
	}{
		{"new, nothing asked", false, files.Permission{}, facts{"root", "root", 644}},
		{"new, all asked", false, files.Permission{Owner: "nobody", Group: "77", Mode: new(4755)}, facts{"nobody", "77", 4755}},
		{"new, no permission asked", false, files.Permission{Mode: new(0)}, facts{"root", "root", 0}},
		{"replaced, nothing asked", true, files.Permission{}, facts{"4242", "4243", 751}},
		{"replaced, mode asked", true, files.Permission{Mode: new(600)}, facts{"4242", "4243", 600}},
		{"replaced, group asked", true, files.Permission{Group: "root"}, facts{"4242", "root", 751}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			if test.there {
				write(t, filepath.Join(root, "file"), "old")
				must(t, f.SetPermissions(map[string]files.Permission{"file": old}))
			}
			_, err := upload(t, f, files.UploadMeta{Path: "file", Permission: test.ask}, []byte("new"))
			must(t, err)
			wantEqual(t, "content", read(t, filepath.Join(root, "file")), "new")
			wantEqual(t, "permission", describe(t, f, "file"), test.want)
		})
	}
}

// TestUploadKeepsWhatTheTargetHasAtTheEnd: what others give the target while an upload arrives, or
// waits for its turn, is not undone.
func TestUploadKeepsWhatTheTargetHasAtTheEnd(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "file")
	write(t, path, "old")
	give := func(permission files.Permission) {
		must(t, f.SetPermissions(map[string]files.Permission{"file": permission}))
	}

	up, err := f.Begin(files.UploadMeta{Path: "file"})
	must(t, err)
	give(files.Permission{Owner: "4242", Group: "4243", Mode: new(751)})
	_, err = up.Commit()
	must(t, err)
	wantEqual(t, "changed while it arrived", describe(t, f, "file"), facts{"4242", "4243", 751})

	unlock, waiting, err := files.LockPlace(f, path)
	must(t, err)
	up, err = f.Begin(files.UploadMeta{Path: "file", Permission: files.Permission{Group: "77"}})
	must(t, err)
	ended := make(chan error)
	go func() {
		_, err := up.Commit()
		ended <- err
	}()
	wait.Until(t, "the upload waits for its turn", func() bool { return waiting() > 0 })
	give(files.Permission{Owner: "4244", Mode: new(600)})
	unlock()
	must(t, wait.For(t, "the end of the upload", ended))
	wantEqual(t, "changed while it waited", describe(t, f, "file"), facts{"4244", "77", 600})
	wantNoTemporary(t, root)
}

func TestUploadFollowsLinks(t *testing.T) {
	f, root := newFiles(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("there/file"), "old")
	must(t, os.Symlink("there/file", at("link")))
	must(t, os.Symlink("link", at("chain")))
	must(t, os.Symlink("made/new", at("broken")))
	must(t, os.Symlink("loop", at("loop")))
	for link, target := range map[string]string{"chain": "there/file", "broken": "made/new"} {
		_, err := upload(t, f, files.UploadMeta{Path: link}, []byte(link))
		must(t, err)
		wantEqual(t, "target of "+link, read(t, at(target)), link)
		infos, err := f.Info([]string{link})
		must(t, err)
		wantEqual(t, link, infos[link].Type, files.TypeSymlink)
	}
	_, err := f.Begin(files.UploadMeta{Path: "loop"})
	wantError(t, err, files.KindInvalid, "/loop", "symbolic links")
}

// TestUploadFollowsLinksAsTheKernel: ".." in a link means the parent of the directory before it,
// not of that directory's name.
func TestUploadFollowsLinksAsTheKernel(t *testing.T) {
	for name, link := range map[string]func(root string) string{
		"relative": func(string) string { return "current/../shared/app.conf" },
		"absolute": func(root string) string { return root + "/current/../shared/app.conf" },
		"twice":    func(string) string { return "current/../1/../shared/./app.conf" },
	} {
		t.Run(name, func(t *testing.T) {
			f, root := newFiles(t)
			at := func(name string) string { return filepath.Join(root, name) }
			mkdir(t, at("releases/1"))
			write(t, at("releases/shared/app.conf"), "old")
			must(t, os.Chmod(at("releases/shared/app.conf"), 0o600))
			must(t, os.Symlink("releases/1", at("current")))
			must(t, os.Symlink(link(root), at("app.conf")))
			_, err := upload(t, f, files.UploadMeta{Path: "app.conf"}, []byte("new"))
			must(t, err)
			wantEqual(t, "what the kernel finds", read(t, at("app.conf")), "new")
			info, err := os.Stat(at("releases/shared/app.conf"))
			must(t, err)
			wantEqual(t, "mode", info.Mode(), 0o600)
			wantEqual(t, "another file's directory exists", exists(t, at("shared")), false)

			// What comes after the last ".." may be missing.
			must(t, os.Symlink("current/../made/new", at("broken")))
			_, err = upload(t, f, files.UploadMeta{Path: "broken"}, []byte("new"))
			must(t, err)
			wantEqual(t, "the new file", read(t, at("releases/made/new")), "new")
			must(t, os.Symlink("missing/../new", at("nowhere")))
			_, err = f.Begin(files.UploadMeta{Path: "nowhere"})
			wantError(t, err, files.KindNotFound, "/nowhere")
			wantEqual(t, "a file beside the link exists", exists(t, at("new")), false)
		})
	}
}

func TestUploadRefuses(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "file"), "old")
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	tests := []struct {
		name string
		meta files.UploadMeta
		kind files.Kind
		part string
	}{
		{"a directory", files.UploadMeta{Path: "home"}, files.KindInvalid, "/home: is a directory"},
		{"the name of a directory", files.UploadMeta{Path: "new/"}, files.KindInvalid, "/new: must name a file"},
		{"the top", files.UploadMeta{Path: "/"}, files.KindInvalid, "must name a file"},
		{"a FIFO", files.UploadMeta{Path: "fifo"}, files.KindInvalid, "/fifo: is not a regular file"},
		{"a device", files.UploadMeta{Path: "/dev/null"}, files.KindInvalid, "/dev/null: is not a regular file"},
		{"below a file", files.UploadMeta{Path: "file/x/y"}, files.KindConflict, "/file: exists and is not a directory"},
		{"empty path", files.UploadMeta{}, files.KindInvalid, "must not be empty"},
		{"mode", files.UploadMeta{Path: "x", Permission: files.Permission{Mode: new(9)}}, files.KindInvalid, "/x: mode"},
		{"owner", files.UploadMeta{Path: "x", Permission: files.Permission{Owner: "no-such-user"}}, files.KindInvalid, "/x: owner"},
		{"group", files.UploadMeta{Path: "x", Permission: files.Permission{Group: "no-such-group"}}, files.KindInvalid, "/x: group"},
		{"digest of another algorithm", files.UploadMeta{Path: "x", Digest: "sha-512=:AAAA:"}, files.KindInvalid, "digest: must contain sha-256"},
		{"digest that is too short", files.UploadMeta{Path: "x", Digest: "sha-256=:AAAA:"}, files.KindInvalid, "digest: must be sha-256"},
		{"digest without colons", files.UploadMeta{Path: "x", Digest: "sha-256=" + digestOf(nil)[9:53]}, files.KindInvalid, "digest"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := f.Begin(test.meta)
			wantError(t, err, test.kind, test.part)
			wantEqual(t, "file", read(t, filepath.Join(root, "file")), "old")
			wantEqual(t, "x exists", exists(t, filepath.Join(root, "x")), false)
			wantNoTemporary(t, root)
		})
	}
}

// TestUploadThatFailsLeavesNoDirectory: neither while it lasts nor afterwards is there anything of
// the directories that it would have made.
func TestUploadThatFailsLeavesNoDirectory(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 300<<10)
	for name, fail := range map[string]func(f *files.Files, meta files.UploadMeta) error{
		"another digest": func(f *files.Files, meta files.UploadMeta) error {
			meta.Digest = digestOf([]byte("other"))
			_, err := upload(t, f, meta, content)
			return err
		},
		"no room": func(f *files.Files, meta files.UploadMeta) error {
			_, err := upload(t, f, meta, make([]byte, 2<<20))
			return err
		},
		"the client left": func(f *files.Files, meta files.UploadMeta) error {
			up, err := f.Begin(meta)
			must(t, err)
			_, err = up.Write(content)
			must(t, err)
			wantEqual(t, "the directory exists before the end", exists(t, filepath.Dir(filepath.Dir(meta.Path))), false)
			up.Abort()
			return context.Canceled
		},
		"a directory came to be at the path": func(f *files.Files, meta files.UploadMeta) error {
			up, err := f.Begin(meta)
			must(t, err)
			mkdir(t, meta.Path)
			_, err = up.Commit()
			must(t, os.RemoveAll(filepath.Dir(filepath.Dir(meta.Path))))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newFiles(t)
			disk := mountTmpfs(t, "size=1m")
			if err := fail(f, files.UploadMeta{Path: filepath.Join(disk, "new/dir/file")}); err == nil {
				t.Error("no error")
			}
			entries, err := os.ReadDir(disk)
			must(t, err)
			wantEqual(t, "entries", len(entries), 0)
			_, err = upload(t, f, files.UploadMeta{Path: filepath.Join(disk, "new/dir/file")}, content)
			must(t, err)
			wantEqual(t, "the directory", describe(t, f, filepath.Join(disk, "new/dir")), facts{"root", "root", 755})
		})
	}
}

func TestUploadChecksTheDigest(t *testing.T) {
	f, root := newFiles(t)
	content := []byte("content")
	_, err := upload(t, f, files.UploadMeta{Path: "file", Digest: digestOf([]byte("other"))}, content)
	wantError(t, err, files.KindInvalid, "/file: digest", digestOf([]byte("other")), digestOf(content))
	wantEqual(t, "file exists", exists(t, filepath.Join(root, "file")), false)
	wantNoTemporary(t, root)

	_, err = upload(t, f, files.UploadMeta{Path: "file", Digest: "sha-512=:AAAA:, " + digestOf(content)}, content)
	must(t, err)
}

func TestUploadIsInvisibleUntilCommit(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "file")
	write(t, path, "old")
	up, err := f.Begin(files.UploadMeta{Path: "file"})
	must(t, err)
	_, err = up.Write([]byte("new"))
	must(t, err)
	wantEqual(t, "before the end", read(t, path), "old")
	up.Abort()
	up.Abort()
	wantEqual(t, "after Abort", read(t, path), "old")
	wantNoTemporary(t, root)
	if _, err := up.Write([]byte("more")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("write after the end: got %v, want fs.ErrClosed", err)
	}
	if _, err := up.Commit(); err == nil {
		t.Error("commit after the end: no error")
	}
	wantEqual(t, "at the end", read(t, path), "old")
}

func TestUploadToAFullDiskLeavesNothing(t *testing.T) {
	for name, size := range map[string]int{"noticed while writing": 8 << 20, "noticed at the end": 1<<20 + 1} {
		t.Run(name, func(t *testing.T) {
			f, _ := newFiles(t)
			disk := mountTmpfs(t, "size=1m")
			_, err := upload(t, f, files.UploadMeta{Path: disk + "/file"}, make([]byte, size))
			wantError(t, err, files.KindNoSpace, disk+"/file", "no space")
			entries, err := os.ReadDir(disk)
			must(t, err)
			wantEqual(t, "entries", len(entries), 0)
			_, err = upload(t, f, files.UploadMeta{Path: disk + "/file"}, make([]byte, 512<<10))
			must(t, err)
		})
	}
}

func TestUploadToAMountedFile(t *testing.T) {
	f, root := newFiles(t)
	path := mountFile(t, root, "a much longer old content")
	_, err := upload(t, f, files.UploadMeta{Path: path, Permission: files.Permission{Mode: new(640)}}, []byte("new"))
	must(t, err)
	wantEqual(t, "content", read(t, path), "new")
	wantEqual(t, "mode", describe(t, f, path).Mode, 640)
	wantNoTemporary(t, root)
}

// TestUploadToAMountedFileOnAFullDisk: the file is written in place, and must not be lost for want
// of room.
func TestUploadToAMountedFileOnAFullDisk(t *testing.T) {
	f, root := newFiles(t)
	disk := mountTmpfs(t, "size=1m")
	source, path := filepath.Join(disk, "source"), filepath.Join(root, "mounted")
	write(t, source, "old")
	write(t, path, "")
	must(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	_, err := upload(t, f, files.UploadMeta{Path: path}, make([]byte, 2<<20))
	wantError(t, err, files.KindNoSpace, path, "no space")
	wantEqual(t, "content", read(t, path), "old")
	wantNoTemporary(t, root)
}

func TestUploadWhereTheKernelTakesNoFiles(t *testing.T) {
	f, _ := newFiles(t)
	for _, path := range []string{"/proc/new", "/proc/version", "/proc/self/new", "/sys/new"} {
		_, err := upload(t, f, files.UploadMeta{Path: path}, []byte("x"))
		wantError(t, err, files.KindPermission, path)
	}
}

// TestConcurrentUploadsIntoANewDirectory: all of them find that it is missing, and one makes it.
func TestConcurrentUploadsIntoANewDirectory(t *testing.T) {
	f, root := newFiles(t)
	for round := range 50 {
		directory := filepath.Join(root, "new", strconv.Itoa(round), "a", "b", "c")
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				if _, err := upload(t, f, files.UploadMeta{Path: filepath.Join(directory, strconv.Itoa(i))}, []byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
}

func TestConcurrentUploadsToOnePathAreWhole(t *testing.T) {
	f, root := newFiles(t)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if _, err := upload(t, f, files.UploadMeta{Path: "new/file"}, bytes.Repeat([]byte{'a' + byte(i)}, 600<<10)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	content := read(t, filepath.Join(root, "new/file"))
	wantEqual(t, "size", len(content), 600<<10)
	wantEqual(t, "bytes of one upload", bytes.Count([]byte(content), []byte{content[0]}), len(content))
	wantNoTemporary(t, root)
}
