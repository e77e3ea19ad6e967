package unpack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images/unpack"
	"sandbox.internal/test/wait"
)

const (
	testBytes   = 8 << 20
	testEntries = 300
)

func limits() *unpack.Limits { return &unpack.Limits{Bytes: testBytes, Entries: testEntries} }

// yard is a folder for a layer, beside a folder that no layer may change.
type yard struct {
	layer, outside string
	before         []string
}

func newYard(t testing.TB) yard {
	t.Helper()
	folder := t.TempDir()
	y := yard{layer: filepath.Join(folder, "layer"), outside: filepath.Join(folder, "outside")}
	for _, made := range []string{y.layer, y.outside} {
		if err := os.Mkdir(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(y.outside, "file"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	y.before = describe(t, folder, y.layer)
	return y
}

func (y yard) check(t testing.TB) {
	t.Helper()
	if after := describe(t, filepath.Dir(y.layer), y.layer); !slices.Equal(after, y.before) {
		t.Errorf("outside of the layer was %q and is %q", y.before, after)
	}
}

// describe lists what is in a folder, with everything about it, leaving out one folder.
func describe(t testing.TB, folder, but string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == but {
			return fs.SkipDir
		}
		lines = append(lines, path+" "+line(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// line describes one file: its type and mode, owner, links, time, content and attributes. Times of
// folders are left out: their entries change them.
func line(t testing.TB, path string) string {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%o %d:%d", stat.Mode, stat.Uid, stat.Gid)
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(" links=%d %d.%d %q", stat.Nlink, stat.Mtim.Sec, stat.Mtim.Nsec, content)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		text += " -> " + target
	case unix.S_IFCHR, unix.S_IFBLK:
		text += fmt.Sprintf(" device %d", stat.Rdev)
	}
	for _, name := range attributes(t, path) {
		value := make([]byte, 256)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(" %s=%q", name, value[:n])
	}
	return text
}

func attributes(t testing.TB, path string) []string {
	t.Helper()
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
}

func unpackInto(t testing.TB, y yard, archive []byte) (unpack.Result, error) {
	t.Helper()
	return unpack.Layer(t.Context(), y.layer, bytes.NewReader(archive), limits(), nil)
}

func TestHostileLayersAreRefused(t *testing.T) {
	for name, test := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			_, err := unpackInto(t, y, test.archive)
			if !errors.Is(err, unpack.ErrRefused) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want one that says %q", err, test.says)
			}
			if err != nil && (len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\n\x00")) {
				t.Errorf("the message is too long or has control characters: %q", err)
			}
			y.check(t)
		})
	}
}

// capability is cap_net_bind_service+ep, as the kernel stores it.
const capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func regular(mode string, content string) string {
	return "100" + mode + " 0:0 links=1 " + stamp() + fmt.Sprintf(" %q", content)
}

func stamp() string { return fmt.Sprintf("%d.789", modified.Unix()) }

// layers are what is allowed, with the tree that it makes. Folders of the tree that are not listed
// are as a layer's folders are by default.
var layers = map[string]struct {
	entries []entry
	tree    map[string]string
	opaque  bool
}{
	"attributes": {
		entries: []entry{
			{name: "./", mode: 0o711, uid: 7},
			{name: "bin/", mode: 0o2755, uid: 1, gid: 2},
			{name: "bin/su", mode: 0o4755, uid: 3, gid: 4, content: "su", attributes: map[string]string{"security.capability": capability}},
			{name: "bin/plain", mode: 0o600},
			{name: "tmp", mode: 0o1777, kind: tar.TypeDir},
			{name: "own", uid: 1<<32 - 2, gid: 100000},
			{name: "attributes", attributes: map[string]string{"user.note": "kept", "user.overlay.opaque": "y", "trusted.overlay.opaque": "y",
				"trusted.overlay.redirect": "/etc", "security.selinux": "x"}},
			{name: "fifo", kind: tar.TypeFifo, mode: 0o640, gid: 5},
		},
		tree: map[string]string{
			".":          "40711 7:0",
			"bin":        "42755 1:2",
			"bin/su":     "104755 3:4 links=1 " + stamp() + ` "su" security.capability=` + fmt.Sprintf("%q", capability),
			"bin/plain":  regular("600", ""),
			"tmp":        "41777 0:0",
			"own":        "100644 4294967294:100000 links=1 " + stamp() + ` ""`,
			"attributes": regular("644", "") + ` user.note="kept"`,
			"fifo":       "10640 0:5",
		},
	},
	"links": {
		entries: []entry{
			{name: "a/file", content: "x"},
			{name: "b/hard", kind: tar.TypeLink, link: "a/file"},
			{name: "b/out", kind: tar.TypeSymlink, link: "../../../../etc", uid: 9},
			{name: "b/absolute", kind: tar.TypeSymlink, link: "/etc/passwd"},
			{name: "b/both", kind: tar.TypeLink, link: "./b/out"},
			{name: "lib", kind: tar.TypeSymlink, link: "usr/lib"},
			{name: "usr/lib/"},
			{name: "lib/through", content: "y"},
		},
		tree: map[string]string{
			"a/file":          "100644 0:0 links=2 " + stamp() + ` "x"`,
			"b/hard":          "100644 0:0 links=2 " + stamp() + ` "x"`,
			"b/out":           "120777 9:0 -> ../../../../etc",
			"b/both":          "120777 9:0 -> ../../../../etc",
			"b/absolute":      "120777 0:0 -> /etc/passwd",
			"lib":             "120777 0:0 -> usr/lib",
			"usr/lib/through": regular("644", "y"),
		},
	},
	"replacements": {
		entries: []entry{
			{name: "file", content: "1"}, {name: "file", content: "2"},
			{name: "tree/a/b"}, {name: "tree", content: "a file now"},
			{name: "link", kind: tar.TypeSymlink, link: "../outside"}, {name: "link/"}, {name: "link/file", content: "inside"},
			{name: "twice/"}, {name: "twice/kept"}, {name: "twice/", mode: 0o700},
			{name: "again", kind: tar.TypeSymlink, link: "/etc/passwd"}, {name: "again", content: "not followed"},
		},
		tree: map[string]string{
			"file":       regular("644", "2"),
			"tree":       regular("644", "a file now"),
			"link/file":  regular("644", "inside"),
			"twice":      "40700 0:0",
			"twice/kept": regular("644", ""),
			"again":      regular("644", "not followed"),
		},
	},
	"whiteouts": {
		entries: []entry{
			{name: "a/.wh.gone"},
			{name: "a/.wh.twice"}, {name: "a/.wh.twice"},
			{name: ".wh.file"}, {name: "file", content: "here"},
			{name: ".wh.folder"}, {name: "folder/inner"},
			{name: "other/inner"}, {name: ".wh.other"},
			{name: "kept"}, {name: ".wh.kept"},
			{name: "b/.wh..wh..opq"}, {name: "b/new"},
			{name: "c/"}, {name: "c/old"}, {name: "c/.wh..wh..opq"},
			{name: ".wh..wh.plnk/", mode: 0o700}, {name: ".wh..wh.plnk/1.2"}, {name: ".wh..wh.aufs"},
			{name: "long/.wh." + strings.Repeat("n", 252)}, {name: "long/.wh." + strings.Repeat("n", 255)},
		},
		tree: map[string]string{
			"a/gone":       "20000 0:0 device 0",
			"a/twice":      "20000 0:0 device 0",
			"file":         regular("644", "here"),
			"folder":       `40755 0:0 trusted.overlay.opaque="y"`,
			"folder/inner": regular("644", ""),
			"other":        `40755 0:0 trusted.overlay.opaque="y"`,
			"other/inner":  regular("644", ""),
			"kept":         regular("644", ""),
			"b":            `40755 0:0 trusted.overlay.opaque="y"`,
			"b/new":        regular("644", ""),
			"c":            `40755 0:0 trusted.overlay.opaque="y"`,
			"c/old":        regular("644", ""),

			"long/" + strings.Repeat("n", 252): "20000 0:0 device 0",
			"long/" + strings.Repeat("n", 255): "20000 0:0 device 0",
		},
	},
	"opaque root": {
		entries: []entry{{name: ".wh..wh..opq"}, {name: "only"}},
		tree:    map[string]string{".": `40755 0:0 trusted.overlay.opaque="y"`, "only": regular("644", "")},
		opaque:  true,
	},
	"names that Docker takes": {
		entries: []entry{
			{name: "/absolute/file", content: "1"}, {name: "//twice/"}, {name: "/../above", content: "2"},
			{name: "usr/x/"}, {name: "usr/x/../y", content: "3"}, {name: "missing/../z", content: "4"}, {name: "usr/../.wh.gone"},
			{name: "hard", kind: tar.TypeLink, link: "/absolute/file"}, {name: "hard2", kind: tar.TypeLink, link: "usr/x/../y"},
			{name: "./.", kind: tar.TypeReg}, {name: ".", kind: tar.TypeSymlink, link: "/"},
			{name: ".wh.folder/file", content: "5"},
		},
		tree: map[string]string{
			"absolute/file": "100644 0:0 links=2 " + stamp() + ` "1"`, "hard": "100644 0:0 links=2 " + stamp() + ` "1"`, "twice": "40755 0:0",
			"above": regular("644", "2"), "usr/x": "40755 0:0", "usr/y": "100644 0:0 links=2 " + stamp() + ` "3"`,
			"hard2": "100644 0:0 links=2 " + stamp() + ` "3"`, "z": regular("644", "4"), "gone": "20000 0:0 device 0",
			".wh.folder/file": regular("644", "5"),
		},
	},
	"below symbolic links": {
		entries: []entry{
			{name: "srv/"}, {name: "data/cur", kind: tar.TypeSymlink, link: "/srv"}, {name: "data/cur/hello", content: "1"},
			{name: "up", kind: tar.TypeSymlink, link: "../../../outside"}, {name: "up/file", content: "2"}, {name: "up/folder/", mode: 0o700},
			{name: "up/.wh.gone"}, {name: "root", kind: tar.TypeSymlink, link: "/"}, {name: "root/at", content: "3"},
			{name: "opt", kind: tar.TypeSymlink, link: "/var/opt"}, {name: "opt/tool/bin", content: "4"},
			{name: "chain", kind: tar.TypeSymlink, link: "opt/new"}, {name: "chain/deep/file", content: "5"},
			{name: "clear", kind: tar.TypeSymlink, link: "/cleared"}, {name: "clear/.wh..wh..opq"}, {name: "clear/new"},
			{name: "hard", kind: tar.TypeLink, link: "up/file"},
		},
		tree: map[string]string{
			"srv": "40755 0:0", "data/cur": "120777 0:0 -> /srv", "srv/hello": regular("644", "1"),
			"up": "120777 0:0 -> ../../../outside", "outside/file": "100644 0:0 links=2 " + stamp() + ` "2"`, "outside/folder": "40700 0:0",
			"hard": "100644 0:0 links=2 " + stamp() + ` "2"`, "outside/gone": "20000 0:0 device 0", "root": "120777 0:0 -> /", "at": regular("644", "3"),
			"opt": "120777 0:0 -> /var/opt", "var/opt/tool/bin": regular("644", "4"),
			"chain": "120777 0:0 -> opt/new", "var/opt/new/deep/file": regular("644", "5"),
			"clear": "120777 0:0 -> /cleared", "cleared": `40755 0:0 trusted.overlay.opaque="y"`, "cleared/new": regular("644", ""),
		},
	},
	"opaque root through a link": {
		entries: []entry{{name: "root", kind: tar.TypeSymlink, link: "/"}, {name: "root/.wh..wh..opq"}},
		tree:    map[string]string{".": `40755 0:0 trusted.overlay.opaque="y"`, "root": "120777 0:0 -> /"},
		opaque:  true,
	},
	"devices elsewhere": {
		entries: []entry{
			{name: "jail/dev/null", kind: tar.TypeChar}, {name: "disk", kind: tar.TypeBlock}, {name: "dev/zero", kind: tar.TypeChar},
			{name: "jail/dev/again", kind: tar.TypeLink, link: "dev/zero"}, {name: "file"},
		},
		tree: map[string]string{"file": regular("644", "")},
	},
	"devices of base images": {
		entries: []entry{{name: "dev/"}, {name: "dev/null", kind: tar.TypeChar, mode: 0o666}, {name: "dev/mapper/x", kind: tar.TypeBlock}},
		tree:    map[string]string{},
	},
	"odd names": {
		entries: []entry{{name: "/", mode: 0o700}, {name: "./a//b/./c"}, {name: "..."}, {name: "..a"}, {name: "a\nb\xff"}, {name: "a.wh.b"},
			{name: strings.Repeat("n", 255)}},
		tree: map[string]string{
			".": "40700 0:0", "a/b/c": regular("644", ""), "...": regular("644", ""), "..a": regular("644", ""), "a\nb\xff": regular("644", ""),
			"a.wh.b": regular("644", ""), strings.Repeat("n", 255): regular("644", ""),
		},
	},
}

func TestLayer(t *testing.T) {
	for name, test := range layers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			result, err := unpackInto(t, y, archive(t, test.entries...))
			if err != nil {
				t.Fatal(err)
			}
			if result.Opaque != test.opaque || result.Bytes <= 0 && len(test.tree) > 0 {
				t.Errorf("result %+v", result)
			}
			want := map[string]string{".": "40755 0:0"}
			for path, text := range test.tree {
				for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
					if want[folder] == "" {
						want[folder] = "40755 0:0"
					}
					if folder == "." {
						break
					}
				}
				want[path] = text
			}
			if name == "devices of base images" {
				want["dev"] = "40755 0:0"
			}
			for _, described := range describe(t, y.layer, "") {
				path, text, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(described, y.layer), "/"), " ")
				if path == "" {
					path = "."
				}
				if want[path] != text {
					t.Errorf("%q is %s, want %s", path, text, want[path])
				}
				delete(want, path)
			}
			if len(want) > 0 {
				t.Errorf("missing: %v", want)
			}
			y.check(t)
		})
	}
}

// TestImplied: of folders without an entry, those are listed that are there in the end.
func TestImplied(t *testing.T) {
	y := newYard(t)
	result, err := unpackInto(t, y, archive(t, entry{name: "tmp/marker"}, entry{name: "home/app/file"}, entry{name: "home/app/"}, entry{name: "a/b/c"},
		entry{name: "a/b", content: "a file"}, entry{name: "link", kind: tar.TypeSymlink, link: "/var"}, entry{name: "link/lib/x"},
		entry{name: "given/"}, entry{name: "given/y"}))
	if want := []string{"a", "home", "tmp", "var", "var/lib"}; err != nil || !slices.Equal(result.Implied, want) {
		t.Errorf("%q, %v, want %q", result.Implied, err, want)
	}
	many := make([]entry, testEntries/2)
	for i := range many {
		many[i] = entry{name: fmt.Sprintf("%d%s/%s/file", i, strings.Repeat("n", 200), strings.Repeat("m", 250))}
	}
	result, err = unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(archive(t, many...)), &unpack.Limits{Bytes: 1 << 30, Entries: 1 << 20}, nil)
	if size := len(strings.Join(result.Implied, "")); err != nil || size == 0 || size > 256<<10 {
		t.Errorf("%d bytes of names, %v", size, err)
	}
}

// TestRefusedHardLinkClosesFolders: a layer that is refused costs no descriptors.
func TestRefusedHardLinkClosesFolders(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	for range 10 {
		_, err := unpackInto(t, newYard(t), archive(t, entry{name: "hard", kind: tar.TypeLink, link: "."}))
		if !errors.Is(err, unpack.ErrRefused) {
			t.Fatal(err)
		}
	}
	if after := open(); after >= before+10 {
		t.Errorf("%d descriptors were open, and then %d", before, after)
	}
}

func TestTimesOfFolders(t *testing.T) {
	y := newYard(t)
	if _, err := unpackInto(t, y, archive(t, entry{name: "./"}, entry{name: "a/"}, entry{name: "a/b/"}, entry{name: "a/b/file"},
		entry{name: "gone/"}, entry{name: "gone", content: "a file"})); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{".", "a", "a/b"} {
		info, err := os.Stat(filepath.Join(y.layer, folder))
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().Equal(modified) {
			t.Errorf("%s is of %s, want %s", folder, info.ModTime(), modified)
		}
	}
}

// TestMemoryOfFolders: what is kept for the times of folders takes little memory, however many
// entries they have and however long the headers.
func TestMemoryOfFolders(t *testing.T) {
	const repeated, entries, limit = "repeated", 50_000, 3 << 20
	last := modified.Add(time.Hour)
	for name, write := range map[string]func(*tar.Writer) error{
		"entries": func(w *tar.Writer) error {
			header := &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, ModTime: modified.Truncate(time.Second)}
			for range entries {
				header.Name = repeated + "/" + strings.Repeat("a", 90) + "/"
				if err := w.WriteHeader(header); err != nil {
					return err
				}
			}
			header.Name, header.ModTime, header.Format = repeated+"/", last, tar.FormatPAX
			return w.WriteHeader(header)
		},
		"headers": func(w *tar.Writer) error { // the name is a part of each
			for i := range 40 {
				header := &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX, ModTime: modified,
					Name: fmt.Sprintf("%s/é%d/", repeated, i), PAXRecords: map[string]string{"comment": strings.Repeat("c", 900_000)}}
				if err := w.WriteHeader(header); err != nil {
					return err
				}
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX, Name: repeated + "/", ModTime: last})
		},
	} {
		t.Run(name, func(t *testing.T) {
			source, sink := io.Pipe()
			before := heap()
			go func() {
				w := tar.NewWriter(sink)
				err := write(w)
				_ = w.Flush()
				if held := heap() - before; held > limit {
					t.Errorf("%d bytes of memory are held", held)
				}
				_ = sink.CloseWithError(errors.Join(err, w.Close()))
			}()
			y := newYard(t)
			var reserved int64
			result, err := unpack.Layer(t.Context(), y.layer, source, &unpack.Limits{Bytes: 1 << 30, Entries: testEntries},
				func(n int64) error { reserved += n; return nil })
			if err != nil {
				t.Fatal(err)
			}
			if reserved < result.Bytes || name == "entries" && reserved < result.Bytes+entries*90 {
				t.Errorf("reserved %d, %+v", reserved, result)
			}
			info, err := os.Stat(filepath.Join(y.layer, repeated))
			if err != nil || !info.ModTime().Equal(last) {
				t.Errorf("the folder is of %v, %v, want %v", info.ModTime(), err, last)
			}
			y.check(t)
		})
	}
}

// heap returns how many bytes of memory are in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestWholeArchiveIsRead: digests are of all bytes, also of those behind the archive's end.
func TestWholeArchiveIsRead(t *testing.T) {
	y := newYard(t)
	source := bytes.NewReader(append(archive(t, entry{name: "file"}), make([]byte, 100_000)...))
	if _, err := unpack.Layer(t.Context(), y.layer, source, limits(), nil); err != nil {
		t.Fatal(err)
	}
	if source.Len() != 0 {
		t.Errorf("%d bytes were not read", source.Len())
	}
}

// TestLimitsAreShared: what the layers of an image take counts together.
func TestLimitsAreShared(t *testing.T) {
	shared := limits()
	half := archive(t, entry{name: "half", content: strings.Repeat("h", testBytes*2/3)})
	for i, want := range []error{nil, unpack.ErrRefused} {
		_, err := unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(half), shared, nil)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("layer %d: %v, want %v", i, err, want)
		}
	}
}

func TestReserve(t *testing.T) {
	full := errors.New("full")
	var reserved int64
	content := archive(t, entry{name: "a/b/c/file", content: strings.Repeat("x", 5000)}, entry{name: ".wh.x"})
	result, err := unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(content), limits(), func(n int64) error {
		reserved += n
		return nil
	})
	if err != nil || reserved != result.Bytes || reserved < 5000 {
		t.Errorf("reserved %d, %+v, %v", reserved, result, err)
	}
	_, err = unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(content), limits(), func(int64) error { return full })
	if !errors.Is(err, full) || errors.Is(err, unpack.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

// TestTakesBesideInodes: what the inode has no room for takes blocks of the disk, which count.
func TestTakesBesideInodes(t *testing.T) {
	const inode, block = 256, 4096
	link := func(bytes int) entry {
		return entry{name: "name", kind: tar.TypeSymlink, link: strings.Repeat("t", bytes)}
	}
	file := func(name string, bytes int) entry {
		return entry{name: "name", attributes: map[string]string{name: strings.Repeat("v", bytes)}}
	}
	for name, test := range map[string]struct {
		entry entry
		takes int64
	}{
		"short target":      {link(59), inode},
		"long target":       {link(60), inode + block},
		"longest target":    {link(4095), inode + block},
		"short attribute":   {file("user.name", 50), inode},
		"long attribute":    {file("user.name", 51), inode + block},
		"ignored attribute": {file("trusted.name", 500), inode},
		"capability":        {entry{name: "name", attributes: map[string]string{"security.capability": capability}}, inode},
		"several attributes": {entry{name: "name", attributes: map[string]string{
			"user.a": strings.Repeat("v", 30), "user.b": strings.Repeat("v", 30),
		}}, inode + block},
		"folder": {entry{name: "name/", attributes: map[string]string{"user.name": strings.Repeat("v", 100)}}, inode + 2*block},
	} {
		t.Run(name, func(t *testing.T) {
			reserved := int64(0)
			content := archive(t, test.entry)
			result, err := unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(content), limits(), func(n int64) error {
				reserved += n
				return nil
			})
			if err != nil || result.Bytes != test.takes || reserved != test.takes {
				t.Errorf("takes %d, reserved %d, %v; want %d", result.Bytes, reserved, err, test.takes)
			}
			// What they take counts for the bound, which the archive itself keeps.
			many := archive(t, slices.Repeat([]entry{test.entry}, 20)...)
			bounds := &unpack.Limits{Bytes: int64(len(many)), Entries: 100}
			_, err = unpack.Layer(t.Context(), newYard(t).layer, bytes.NewReader(many), bounds, nil)
			if more := 20*test.takes > bounds.Bytes; errors.Is(err, unpack.ErrRefused) != more || !more && err != nil {
				t.Errorf("twenty of them, within %d bytes: %v", bounds.Bytes, err)
			}
		})
	}
}

// TestLargeAttributes: what no file system stores of user.*, or this one does not, is left out; the
// rest is kept.
func TestLargeAttributes(t *testing.T) {
	large := strings.Repeat("v", 8000) // ext4 stores less
	y := newYard(t)
	_, err := unpackInto(t, y, archive(t, entry{name: "file", attributes: map[string]string{
		"user.a": large, "user.b": strings.Repeat("v", 1<<17), "user." + strings.Repeat("n", 300): "v", "user.note": "kept",
		"security.capability": capability,
	}}))
	if err != nil {
		t.Fatal(err)
	}
	found := attributes(t, filepath.Join(y.layer, "file"))
	found = slices.DeleteFunc(found, func(name string) bool { return name == "user.a" })
	slices.Sort(found)
	if want := []string{"security.capability", "user.note"}; !slices.Equal(found, want) {
		t.Errorf("attributes %q, want %q", found, want)
	}
}

// ext4 mounts a file system of that size, which has one block for the attributes of a file.
func ext4(t *testing.T, size string) string {
	t.Helper()
	folder := t.TempDir()
	image, mounted := filepath.Join(folder, "image"), filepath.Join(folder, "mounted")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", image, size},
		{"mount", "-t", "ext4", "-o", "loop", image, mounted},
	} {
		if printed, err := wait.Command(t, command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", command, err, printed)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	})
	return mounted
}

// TestNoRoomForCapability: a file that would lack its capability is no failure of the disk either.
func TestNoRoomForCapability(t *testing.T) {
	content := archive(t,
		entry{name: "folder/", attributes: map[string]string{"user.a": strings.Repeat("v", 60), "user.b": strings.Repeat("v", 4000)}},
		entry{name: "folder/", attributes: map[string]string{"security.capability": capability}})
	_, err := unpack.Layer(t.Context(), ext4(t, "16M"), bytes.NewReader(content), limits(), nil)
	if !errors.Is(err, unpack.ErrRefused) || errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
}

// TestNoRoomForAttributes: a disk that is full is no reason to leave an attribute out.
func TestNoRoomForAttributes(t *testing.T) {
	content := archive(t, entry{name: "file", attributes: map[string]string{"user.a": strings.Repeat("v", 60_000)}})
	_, err := unpack.Layer(t.Context(), ext4(t, "1M"), bytes.NewReader(content), limits(), nil)
	if !errors.Is(err, unix.ENOSPC) || errors.Is(err, unpack.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

// gnuSparse is a file of size bytes that begins with 512 bytes of content and has nothing else.
func gnuSparse(size int64) []byte {
	archive := plain(tar.TypeGNUSparse, func(header []byte) {
		copy(header[257:], "ustar  \x00")
		copy(header[124:], "00000001000\x00")
		copy(header[386:], "00000000000\x0000000001000\x00")
		copy(header[483:], fmt.Sprintf("%011o\x00", size))
	})
	return slices.Concat(archive[:512], bytes.Repeat([]byte("c"), 512), make([]byte, 1024))
}

// TestHoles: what an archive has no bytes for, or zeros, takes nothing of the disk.
func TestHoles(t *testing.T) {
	const size = 1 << 30
	noise := func(n int) string { return strings.Repeat("noise", n/5) }
	mixed := noise(100_000) + string(make([]byte, 300_000)) + noise(70_000) + string(make([]byte, 200_000)) + "end"
	for name, test := range map[string]struct {
		archive []byte
		content string // as far as it is not zero
		size    int64
		takes   int64 // at most
	}{
		"GNU sparse":           {gnuSparse(size), strings.Repeat("c", 512), size, 128 << 10},
		"zeros":                {archive(t, entry{name: "name", content: string(make([]byte, 5<<20))}), "", 5 << 20, 4096},
		"zeros, short":         {archive(t, entry{name: "name", content: string(make([]byte, 10))}), "", 10, 4096},
		"zeros in the middle":  {archive(t, entry{name: "name", content: mixed}), mixed, int64(len(mixed)), 400_000},
		"zeros at the end":     {archive(t, entry{name: "name", content: noise(65_540) + string(make([]byte, 1<<20))}), noise(65_540), 65_540 + 1<<20, 140_000},
		"no zeros":             {archive(t, entry{name: "name", content: noise(1_000_000)}), noise(1_000_000), 1_000_000, 1_010_000},
		"a few zeros, written": {archive(t, entry{name: "name", content: "a" + string(make([]byte, 8192)) + "b"}), "a" + string(make([]byte, 8192)) + "b", 8194, 12288},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			var reserved int64
			result, err := unpack.Layer(t.Context(), y.layer, bytes.NewReader(test.archive), &unpack.Limits{Bytes: 2 * size, Entries: 10},
				func(n int64) error { reserved += n; return nil })
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(y.layer, "name")
			var stat unix.Stat_t
			if err := unix.Stat(path, &stat); err != nil {
				t.Fatal(err)
			}
			if stat.Size != test.size || stat.Blocks*512 > test.takes || reserved != result.Bytes || reserved > test.takes+512 {
				t.Errorf("%d bytes, which take %d; reserved %d, %+v", stat.Size, stat.Blocks*512, reserved, result)
			}
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			found := make([]byte, min(test.size, 8<<20))
			if _, err := io.ReadFull(file, found); err != nil {
				t.Fatal(err)
			}
			if got := string(bytes.TrimRight(found, "\x00")); got != test.content {
				t.Errorf("content of %d bytes, want %d", len(got), len(test.content))
			}
		})
	}
}

// TestReplaceDeepTree: an entry takes the place of a tree that is deeper than this process may have
// files open.
func TestReplaceDeepTree(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	y := newYard(t)
	content := archive(t, entry{name: strings.Repeat("d/", 500) + "file"}, entry{name: "d", content: "a file now"})
	if _, err := unpack.Layer(t.Context(), y.layer, bytes.NewReader(content), &unpack.Limits{Bytes: 1 << 30, Entries: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	if found, err := os.ReadFile(filepath.Join(y.layer, "d")); err != nil || string(found) != "a file now" {
		t.Errorf("%q, %v", found, err)
	}
	if entries, err := os.ReadDir(y.layer); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// brokenReader fails after some bytes.
type brokenReader struct {
	source io.Reader
	err    error
}

func (r *brokenReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	if err == io.EOF {
		err = r.err
	}
	return n, err
}

// TestErrorOfSource: a failed download is not the layer's fault.
func TestErrorOfSource(t *testing.T) {
	broken := errors.New("broken")
	whole := archive(t, entry{name: "file", content: strings.Repeat("x", 5000)})
	for _, n := range []int{0, 100, 512, 2048, len(whole)} {
		_, err := unpack.Layer(t.Context(), newYard(t).layer, &brokenReader{bytes.NewReader(whole[:n]), broken}, limits(), nil)
		if !errors.Is(err, broken) || errors.Is(err, unpack.ErrRefused) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var read atomic.Int64
	endless := readerFunc(func(p []byte) (int, error) {
		if read.Add(int64(len(p))) > 1<<20 {
			cancel()
		}
		clear(p)
		return len(p), nil
	})
	header := archive(t, entry{name: "file"})[:1024] // PAX: more than one block
	_, err := unpack.Layer(ctx, newYard(t).layer, io.MultiReader(bytes.NewReader(header), endless),
		&unpack.Limits{Bytes: 1 << 40, Entries: 10}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestEndlessHeaders: an archive of nothing but headers about headers is bounded by what it
// decompresses to.
func TestEndlessHeaders(t *testing.T) {
	block := plain('x', func(header []byte) { copy(header[124:], "00000000000\x00") })[:512]
	at := 0
	endless := readerFunc(func(p []byte) (int, error) {
		n := copy(p, block[at:])
		at = (at + n) % len(block)
		return n, nil
	})
	_, err := unpack.Layer(t.Context(), newYard(t).layer, endless, limits(), nil)
	if !errors.Is(err, unpack.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestOverlay mounts layers with the kernel's own overlayfs.
func TestOverlay(t *testing.T) {
	folder := t.TempDir()
	var lower []string
	for i, entries := range [][]entry{
		{{name: "a/one"}, {name: "a/two"}, {name: "b/one"}, {name: "c/one"}, {name: "file", content: "low"}, {name: "gone/deep/file"}},
		{{name: "a/.wh.one"}, {name: "b/.wh..wh..opq"}, {name: "b/two"}, {name: ".wh.c"}, {name: "c/two"}, {name: ".wh.gone"}, {name: ".wh.never"},
			{name: "file", content: "high"}},
	} {
		layer := filepath.Join(folder, fmt.Sprint(i))
		if err := os.Mkdir(layer, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := unpack.Layer(t.Context(), layer, bytes.NewReader(archive(t, entries...)), limits(), nil); err != nil {
			t.Fatal(err)
		}
		lower = append([]string{layer}, lower...)
	}
	merged := filepath.Join(folder, "merged")
	if err := os.Mkdir(merged, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	}()
	var files []string
	err := filepath.WalkDir(merged, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, strings.TrimPrefix(path, merged+"/"))
		}
		return err
	})
	if want := []string{"a/two", "b/two", "c/two", "file"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("overlayfs shows %v, %v; want %v", files, err, want)
	}
	if content, err := os.ReadFile(filepath.Join(merged, "file")); err != nil || string(content) != "high" {
		t.Errorf("file holds %q, %v", content, err)
	}
}

// FuzzUnpack: whatever the bytes, nothing outside of the layer's folder changes, the bounds hold,
// and there are no devices and no attributes of overlayfs but ours.
func FuzzUnpack(f *testing.F) {
	for _, test := range hostile(f) {
		if len(test.archive) < 64<<10 {
			f.Add(test.archive)
		}
	}
	for _, test := range layers {
		f.Add(archive(f, test.entries...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		y := newYard(t)
		bounds := &unpack.Limits{Bytes: 1 << 20, Entries: 100}
		result, err := unpack.Layer(t.Context(), y.layer, bytes.NewReader(data), bounds, nil)
		y.check(t)
		entries, blocks := 0, int64(0)
		walk := filepath.WalkDir(y.layer, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var stat unix.Stat_t
			if err := unix.Lstat(path, &stat); err != nil {
				return err
			}
			entries++
			blocks += stat.Blocks * 512
			switch stat.Mode & unix.S_IFMT {
			case unix.S_IFBLK:
				t.Errorf("%q is a block device", path)
			case unix.S_IFCHR:
				if stat.Rdev != 0 {
					t.Errorf("%q is device %d", path, stat.Rdev)
				}
			}
			for _, name := range attributes(t, path) {
				if name != "trusted.overlay.opaque" && name != "security.capability" && !strings.HasPrefix(name, "user.") {
					t.Errorf("%q has the attribute %s", path, name)
				}
			}
			return nil
		})
		if walk != nil {
			t.Error(walk)
		}
		if entries > 101 || blocks > 1<<20+4096*101 {
			t.Errorf("%d entries with %d bytes on the disk", entries, blocks)
		}
		if err == nil && result.Bytes > 1<<20 {
			t.Errorf("result %+v", result)
		}
		if t.Failed() {
			t.Log(hex.EncodeToString(data[:min(len(data), 4096)]))
		}
	})
}
