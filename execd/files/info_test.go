package files_test

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestPathRules(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "a.txt"), "root")
	write(t, filepath.Join(root, "home/a.txt"), "home")
	write(t, filepath.Join(root, "~other"), "plain")
	tests := []struct{ name, path, want string }{
		{"absolute", root + "/a.txt", root + "/a.txt"},
		{"absolute, not clean", root + "//./home/../a.txt", root + "/a.txt"},
		{"relative", "a.txt", root + "/a.txt"},
		{"relative, not clean", "./home/../a.txt", root + "/a.txt"},
		{"in the home", "~/a.txt", root + "/home/a.txt"},
		{"the home", "~", root + "/home"},
		{"a name that starts like the home", "~other", root + "/~other"},
		{"above the top", "/../../" + root, root},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			infos, err := f.Info([]string{test.path})
			must(t, err)
			wantEqual(t, "path", infos[test.path].Path, test.want)
		})
	}
	t.Run("empty", func(t *testing.T) {
		_, err := f.Info([]string{"a.txt", ""})
		wantError(t, err, files.KindInvalid, "path", "must not be empty")
	})
	t.Run("NUL byte", func(t *testing.T) {
		_, err := f.Info([]string{"a\x00b"})
		wantError(t, err, files.KindInvalid, `"a\x00b"`, "NUL")
	})
	t.Run("too long", func(t *testing.T) {
		_, err := f.Info([]string{strings.Repeat("x", 300)})
		wantError(t, err, files.KindInvalid, "too long")
	})
	t.Run("a link to itself", func(t *testing.T) {
		must(t, os.Symlink("loop", filepath.Join(root, "loop")))
		_, err := f.Info([]string{"loop/x"})
		wantError(t, err, files.KindInvalid, root+"/loop/x", "symbolic links")
	})
}

func TestWithoutOptionsPathsStartAtTheProcess(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	write(t, "here", "")
	write(t, filepath.Join(os.Getenv("HOME"), "there"), "")
	if _, err := files.New(files.Options{}).Info([]string{"here", "~/there"}); err != nil {
		t.Error(err)
	}
}

func TestInfoTypesAndModes(t *testing.T) {
	f, root := newFiles(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("file"), "12345")
	must(t, os.Symlink("file", at("link")))
	must(t, os.Symlink("nowhere", at("broken")))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	socket, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer socket.Close()
	mkdir(t, at("dir"))
	write(t, at("setuid"), "")
	must(t, unix.Chmod(at("setuid"), 0o4755))
	mkdir(t, at("sticky"))
	must(t, unix.Chmod(at("sticky"), 0o1777))
	write(t, at("closed"), "")
	must(t, unix.Chmod(at("closed"), 0))

	tests := []struct {
		name string
		kind files.Type
		size int64
		mode int
	}{
		{"file", files.TypeFile, 5, 644},
		{"link", files.TypeSymlink, 4, 777},
		{"broken", files.TypeSymlink, 7, 777},
		{"fifo", files.TypeOther, 0, 600},
		{"socket", files.TypeOther, 0, 755},
		{"dir", files.TypeDirectory, -1, 755},
		{"setuid", files.TypeFile, 0, 4755},
		{"sticky", files.TypeDirectory, -1, 1777},
		{"closed", files.TypeFile, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			infos, err := f.Info([]string{test.name})
			must(t, err)
			info := infos[test.name]
			wantEqual(t, "type", info.Type, test.kind)
			wantEqual(t, "mode", info.Mode, test.mode)
			if test.size >= 0 {
				wantEqual(t, "size", info.Size, test.size)
			}
		})
	}
}

func TestInfoOwnersAndTimes(t *testing.T) {
	f, root := newFiles(t)
	path := filepath.Join(root, "file")
	before := time.Now().Add(-time.Minute)
	write(t, path, "")
	modified := time.Date(2031, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	must(t, os.Chtimes(path, modified, modified))
	must(t, os.Chown(path, 0, 54321))

	infos, err := f.Info([]string{"file", path})
	must(t, err)
	wantList(t, "keys are the paths as given", keys(infos), []string{path, "file"})
	info := infos["file"]
	wantEqual(t, "both describe the same", info, infos[path])
	wantEqual(t, "owner", info.Owner, "root")
	wantEqual(t, "group without a name", info.Group, "54321")
	wantEqual(t, "modified", info.Modified, modified)
	if info.Created.Before(before) || info.Created.After(time.Now()) {
		t.Errorf("created at %v, want about now", info.Created)
	}
}

// TestTimesThatNoAnswerCanHold: files of such a time are described and found like others.
func TestTimesThatNoAnswerCanHold(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "size=1m") // which keeps any time
	write(t, disk+"/file", "")
	first, last := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	for _, test := range []struct {
		name string
		set  unix.Timespec
		want time.Time
	}{
		{"year 10000", unix.Timespec{Sec: last.Unix() + 1}, last},
		{"the end of time", unix.Timespec{Sec: math.MaxInt64}, last},
		{"the last moment", unix.Timespec{Sec: last.Unix(), Nsec: 999_999_999}, last},
		{"the first moment", unix.Timespec{Sec: first.Unix()}, first},
		{"year 0", unix.Timespec{Sec: first.Unix() - 1, Nsec: 5}, first},
		{"the beginning of time", unix.Timespec{Sec: math.MinInt64}, first},
		{"before 1970", unix.Timespec{Sec: -1, Nsec: 5}, time.Unix(-1, 5).UTC()},
	} {
		t.Run(test.name, func(t *testing.T) {
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, disk+"/file", []unix.Timespec{test.set, test.set}, 0))
			infos, err := f.Info([]string{disk + "/file"})
			must(t, err)
			found, err := search(t.Context(), f, disk, "file")
			must(t, err)
			for _, info := range append(found, infos[disk+"/file"]) {
				wantEqual(t, "modified", info.Modified, test.want)
				_, err := info.Modified.MarshalJSON()
				must(t, err)
			}
			wantEqual(t, "found", len(found), 1)
		})
	}
}

func TestInfoWithoutTimeOfBirth(t *testing.T) {
	f, _ := newFiles(t)
	// proc keeps no time of birth.
	infos, err := f.Info([]string{"/proc/self/status"})
	must(t, err)
	if info := infos["/proc/self/status"]; info.Created.IsZero() || info.Created.Year() < 2000 || info.Created.After(info.Modified) {
		t.Errorf("created at %v, modified at %v", info.Created, info.Modified)
	}
}

func TestInfoOfMissingPaths(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "file"), "")
	for _, path := range []string{"missing", "home/missing/deeper", "file/below"} {
		_, err := f.Info([]string{"file", path})
		wantError(t, err, files.KindNotFound, filepath.Join(root, path), "no such file")
	}
}
