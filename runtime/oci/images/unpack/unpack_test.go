package unpack_test

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images/unpack"
)

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

// layers are what is allowed, with the tree that it makes. Directories of the tree that are not
// listed are as a layer's directories are by default.
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
			{name: ".wh.directory"}, {name: "directory/inner"},
			{name: "other/inner"}, {name: ".wh.other"},
			{name: "kept"}, {name: ".wh.kept"},
			{name: "b/.wh..wh..opq"}, {name: "b/new"},
			{name: "c/"}, {name: "c/old"}, {name: "c/.wh..wh..opq"},
			{name: ".wh..wh.plnk/", mode: 0o700}, {name: ".wh..wh.plnk/1.2"}, {name: ".wh..wh.aufs"},
			{name: "long/.wh." + strings.Repeat("n", 252)}, {name: "long/.wh." + strings.Repeat("n", 255)},
		},
		tree: map[string]string{
			"a/gone":          "20000 0:0 device 0",
			"a/twice":         "20000 0:0 device 0",
			"file":            regular("644", "here"),
			"directory":       `40755 0:0 trusted.overlay.opaque="y"`,
			"directory/inner": regular("644", ""),
			"other":           `40755 0:0 trusted.overlay.opaque="y"`,
			"other/inner":     regular("644", ""),
			"kept":            regular("644", ""),
			"b":               `40755 0:0 trusted.overlay.opaque="y"`,
			"b/new":           regular("644", ""),
			"c":               `40755 0:0 trusted.overlay.opaque="y"`,
			"c/old":           regular("644", ""),

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
			{name: ".wh.directory/file", content: "5"},
		},
		tree: map[string]string{
			"absolute/file": "100644 0:0 links=2 " + stamp() + ` "1"`, "hard": "100644 0:0 links=2 " + stamp() + ` "1"`, "twice": "40755 0:0",
			"above": regular("644", "2"), "usr/x": "40755 0:0", "usr/y": "100644 0:0 links=2 " + stamp() + ` "3"`,
			"hard2": "100644 0:0 links=2 " + stamp() + ` "3"`, "z": regular("644", "4"), "gone": "20000 0:0 device 0",
			".wh.directory/file": regular("644", "5"),
		},
	},
	"below symbolic links": {
		entries: []entry{
			{name: "srv/"}, {name: "data/cur", kind: tar.TypeSymlink, link: "/srv"}, {name: "data/cur/hello", content: "1"},
			{name: "up", kind: tar.TypeSymlink, link: "../../../outside"}, {name: "up/file", content: "2"}, {name: "up/directory/", mode: 0o700},
			{name: "up/.wh.gone"}, {name: "root", kind: tar.TypeSymlink, link: "/"}, {name: "root/at", content: "3"},
			{name: "opt", kind: tar.TypeSymlink, link: "/var/opt"}, {name: "opt/tool/bin", content: "4"},
			{name: "chain", kind: tar.TypeSymlink, link: "opt/new"}, {name: "chain/deep/file", content: "5"},
			{name: "clear", kind: tar.TypeSymlink, link: "/cleared"}, {name: "clear/.wh..wh..opq"}, {name: "clear/new"},
			{name: "hard", kind: tar.TypeLink, link: "up/file"},
		},
		tree: map[string]string{
			"srv": "40755 0:0", "data/cur": "120777 0:0 -> /srv", "srv/hello": regular("644", "1"),
			"up": "120777 0:0 -> ../../../outside", "outside/file": "100644 0:0 links=2 " + stamp() + ` "2"`, "outside/directory": "40700 0:0",
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
				for directory := filepath.Dir(path); ; directory = filepath.Dir(directory) {
					if want[directory] == "" {
						want[directory] = "40755 0:0"
					}
					if directory == "." {
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

// TestImplied: of directories without an entry, those are listed that are there in the end.
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

// TestRefusedHardLinkClosesDirectories: a layer that is refused costs no descriptors.
func TestRefusedHardLinkClosesDirectories(t *testing.T) {
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

func TestTimesOfDirectories(t *testing.T) {
	y := newYard(t)
	if _, err := unpackInto(t, y, archive(t, entry{name: "./"}, entry{name: "a/"}, entry{name: "a/b/"}, entry{name: "a/b/file"},
		entry{name: "gone/"}, entry{name: "gone", content: "a file"})); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{".", "a", "a/b"} {
		info, err := os.Stat(filepath.Join(y.layer, directory))
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().Equal(modified) {
			t.Errorf("%s is of %s, want %s", directory, info.ModTime(), modified)
		}
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

// TestOverlay mounts layers with the kernel's own overlayfs.
func TestOverlay(t *testing.T) {
	directory := t.TempDir()
	var lower []string
	for i, entries := range [][]entry{
		{{name: "a/one"}, {name: "a/two"}, {name: "b/one"}, {name: "c/one"}, {name: "file", content: "low"}, {name: "gone/deep/file"}},
		{{name: "a/.wh.one"}, {name: "b/.wh..wh..opq"}, {name: "b/two"}, {name: ".wh.c"}, {name: "c/two"}, {name: ".wh.gone"}, {name: ".wh.never"},
			{name: "file", content: "high"}},
	} {
		layer := filepath.Join(directory, fmt.Sprint(i))
		if err := os.Mkdir(layer, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := unpack.Layer(t.Context(), layer, bytes.NewReader(archive(t, entries...)), limits(), nil); err != nil {
			t.Fatal(err)
		}
		lower = append([]string{layer}, lower...)
	}
	merged := filepath.Join(directory, "merged")
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

// FuzzUnpack: whatever the bytes, nothing outside of the layer's directory changes, the bounds
// hold, and there are no devices and no attributes of overlayfs but ours.
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
