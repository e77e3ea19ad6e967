package files_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"sandbox.internal/execd/files"
)

func TestReplace(t *testing.T) {
	tests := []struct{ name, content, old, new, want string }{
		{"every occurrence", "a-b-a-b-a", "a", "xyz", "xyz-b-xyz-b-xyz"},
		{"shorter", "hello hello", "hello", "", " "},
		{"lines", "one\ntwo\n", "one\n", "1\n", "1\ntwo\n"},
		{"left to right", "aaaaa", "aa", "b", "bba"},
		{"what was put in is not looked at again", "ab", "a", "aa", "aab"},
		{"not UTF-8", "\xff\x00\xfe", "\x00", "-", "\xff-\xfe"},
		{"the whole file", "all", "all", "nothing", "nothing"},
		{"longer than the file", "ab", "abc", "x", "ab"},
		{"an empty file", "", "a", "x", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "file"), test.content)
			must(t, f.Replace(map[string]files.Replacement{"file": {Old: test.old, New: test.new}}))
			wantEqual(t, "content", read(t, filepath.Join(root, "file")), test.want)
			wantNoTemporary(t, root)
		})
	}
}

func TestReplaceKeepsModeOwnerAndLink(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "dir/file"), "old")
	must(t, f.SetPermissions(map[string]files.Permission{"dir/file": {Owner: "4242", Group: "4243", Mode: new(6751)}}))
	must(t, os.Symlink("dir/file", filepath.Join(root, "link")))

	must(t, f.Replace(map[string]files.Replacement{"link": {Old: "old", New: "new"}}))
	wantEqual(t, "content", read(t, filepath.Join(root, "dir/file")), "new")
	wantEqual(t, "permission", describe(t, f, "dir/file"), facts{"4242", "4243", 6751})
	wantEqual(t, "mode of the link", describe(t, f, "link").Mode, 777)
}

func TestReplaceWithoutOccurrenceLeavesTheFileUntouched(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "file")
	write(t, path, "content")
	before, err := os.Stat(path)
	must(t, err)
	must(t, f.Replace(map[string]files.Replacement{"file": {Old: "missing", New: "x"}}))
	after, err := os.Stat(path)
	must(t, err)
	wantEqual(t, "same file", os.SameFile(before, after), true)
	wantEqual(t, "modified", after.ModTime(), before.ModTime())
	wantNoTemporary(t, root)
}

func TestReplaceMatchesTheStandardLibraryAcrossChunks(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "file")
	const chunk = 256 << 10
	rapid.Check(t, func(t *rapid.T) {
		// Few letters make overlaps; the padding moves the interesting part around the border of a
		// chunk.
		word := rapid.StringMatching(`[ab]{1,40}`)
		old, replacement := rapid.StringMatching(`[ab]{1,6}`).Draw(t, "old"), word.Draw(t, "new")
		content := strings.Repeat("c", chunk-rapid.IntRange(0, 60).Draw(t, "shift")) + word.Draw(t, "first") +
			word.Draw(t, "second") + strings.Repeat("c", rapid.SampledFrom([]int{0, chunk}).Draw(t, "tail")) + word.Draw(t, "last")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Replace(map[string]files.Replacement{path: {Old: old, New: replacement}}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(content, old, replacement); string(got) != want {
			t.Fatalf("%q by %q: results differ in %d bytes", old, replacement, len(want))
		}
	})
}

func TestReplaceChecksAllBeforeTheFirstChange(t *testing.T) {
	tests := []struct {
		name, path, old string
		kind            files.Kind
		part            string
	}{
		{"missing", "missing", "x", files.KindNotFound, "/missing: no such file"},
		{"broken link", "broken", "x", files.KindNotFound, "/broken: no such file"},
		{"directory", "home", "x", files.KindInvalid, "/home: is not a regular file"},
		{"FIFO", "fifo", "x", files.KindInvalid, "/fifo: is not a regular file"},
		{"empty old", "b", "", files.KindInvalid, "/b: old: must not be empty"},
		{"the same file twice", "same", "x", files.KindInvalid, "/same: names the same file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "a"), "old")
			write(t, filepath.Join(root, "b"), "old")
			must(t, os.Symlink("nowhere", filepath.Join(root, "broken")))
			must(t, os.Symlink("a", filepath.Join(root, "same")))
			must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
			err := f.Replace(map[string]files.Replacement{"a": {Old: "old", New: "new"}, test.path: {Old: test.old}})
			wantError(t, err, test.kind, test.part)
			wantEqual(t, "the first", read(t, filepath.Join(root, "a")), "old")
			wantNoTemporary(t, root)
		})
	}
}

func TestReplaceOnAFullDiskChangesNothing(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "size=1m")
	write(t, disk+"/a", "old")
	write(t, disk+"/b", strings.Repeat("x", 300<<10))
	err := f.Replace(map[string]files.Replacement{
		disk + "/a": {Old: "old", New: "new"},
		disk + "/b": {Old: "x", New: strings.Repeat("y", 10)},
	})
	wantError(t, err, files.KindNoSpace, disk+"/b", "no space")
	wantEqual(t, "the first", read(t, disk+"/a"), "old")
	wantEqual(t, "the second", len(read(t, disk+"/b")), 300<<10)
	wantNoTemporary(t, disk)
}

// TestReplaceByManyAtOnce: each change that succeeds is in the file at the end, and those of a
// conflict can be repeated.
func TestReplaceByManyAtOnce(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "dir/file")
	must(t, os.MkdirAll(filepath.Join(root, "dir"), 0o755))
	must(t, os.Symlink("dir", filepath.Join(root, "link")))
	const editors, rounds = 8, 20
	var content, want strings.Builder
	for i := range editors * rounds {
		fmt.Fprintf(&content, "<%d>\n", i)
		fmt.Fprintf(&want, "[%d]\n", i)
	}
	write(t, path, content.String())
	var group sync.WaitGroup
	for i := range editors {
		group.Go(func() {
			for n := i; n < editors*rounds; n += editors {
				edit := files.Replacement{Old: fmt.Sprintf("<%d>", n), New: fmt.Sprintf("[%d]", n)}
				err := errors.New("not tried")
				for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
					if err = f.Replace(map[string]files.Replacement{[]string{"dir/file", "link/file"}[n%2]: edit}); err != nil && files.KindOf(err) != files.KindConflict {
						break
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	wantEqual(t, "content", read(t, path), want.String())
	wantNoTemporary(t, root)
}

func TestReplaceOfWhatChangedMeanwhile(t *testing.T) {
	old := time.Unix(1e9, 0)
	for name, change := range map[string]func(t *testing.T, f *files.Files, path string){
		"an upload": func(t *testing.T, f *files.Files, path string) {
			_, err := upload(t, f, files.UploadMeta{Path: path}, []byte("OLD"))
			must(t, err)
		},
		"another replace": func(t *testing.T, f *files.Files, path string) {
			must(t, f.Replace(map[string]files.Replacement{path: {Old: "old", New: "OLD"}}))
		},
		"a program": func(t *testing.T, _ *files.Files, path string) { write(t, path, "OLD") },
	} {
		t.Run(name, func(t *testing.T) {
			f, root := newFiles(t)
			path := filepath.Join(root, "file")
			write(t, path, "old")
			must(t, os.Chtimes(path, old, old))
			commit, err := files.Prepare(f, path, files.Replacement{Old: "old", New: "new"})
			must(t, err)
			change(t, f, path)
			must(t, os.Chtimes(path, old, old)) // size and modification time tell nothing
			wantError(t, commit(), files.KindConflict, path, "meanwhile")
			wantEqual(t, "content", read(t, path), "OLD")
			wantNoTemporary(t, root)
		})
	}
}

func TestReplaceInAMountedFile(t *testing.T) {
	f, root := newFiles(t)
	path := mountFile(t, root, "127.0.0.1 localhost\n")
	must(t, f.Replace(map[string]files.Replacement{path: {Old: "localhost", New: "here"}}))
	wantEqual(t, "content", read(t, path), "127.0.0.1 here\n")
	wantNoTemporary(t, root)
}

// mountFile mounts a single file on another, as engines do with /etc/hosts.
func mountFile(t *testing.T, root, content string) string {
	t.Helper()
	source, path := filepath.Join(t.TempDir(), "source"), filepath.Join(root, "hosts")
	write(t, source, content)
	write(t, path, "")
	must(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestReplaceInALargeFileTakesLittleMemory(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "large")
	file, err := os.Create(path)
	must(t, err)
	must(t, file.Truncate(64<<20))
	_, err = file.WriteAt([]byte("needle"), 40<<20)
	must(t, err)
	must(t, file.Close())

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(t, f.Replace(map[string]files.Replacement{path: {Old: "needle", New: "noodle"}}))
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2<<20 {
		t.Errorf("allocated %d bytes for a file of 64 MiB", allocated)
	}
	wantEqual(t, "content", read(t, path)[40<<20:40<<20+6], "noodle")
}
