package unpack_test

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"time"
)

// entry is an entry of an archive. A name that ends in a slash is a directory's; the other kinds
// are set.
type entry struct {
	name       string
	kind       byte // 0: a directory or a regular file
	link       string
	content    string
	mode       int64 // 0: 0644, or 0755 for a directory
	uid, gid   int
	attributes map[string]string
}

var modified = time.Date(2020, 2, 3, 4, 5, 6, 789, time.UTC)

func (e entry) header() *tar.Header {
	header := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.content)), Mode: e.mode, Uid: e.uid, Gid: e.gid,
		ModTime: modified, Format: tar.FormatPAX, PAXRecords: map[string]string{}}
	if e.kind == 0 {
		header.Typeflag = tar.TypeReg
		if strings.HasSuffix(e.name, "/") {
			header.Typeflag = tar.TypeDir
		}
	}
	if e.mode == 0 {
		header.Mode = 0o644
		if header.Typeflag == tar.TypeDir {
			header.Mode = 0o755
		}
	}
	for name, value := range e.attributes {
		header.PAXRecords["SCHILY.xattr."+name] = value
	}
	return header
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, e := range entries {
		if err := w.WriteHeader(e.header()); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// hostile are layers that are refused, each with words of the reason.
func hostile(t testing.TB) map[string]refusal {
	many := make([]entry, testEntries+1)
	for i := range many {
		many[i] = entry{name: "many/" + strings.Repeat("x", i%200+1) + string(rune('a'+i%26)) + "/"}
	}
	deep := strings.Repeat("d/", testEntries+1)
	return map[string]refusal{
		"name above":               {archive(t, entry{name: "../outside/file"}), `".."`},
		"name above, later":        {archive(t, entry{name: "a/../../outside/file"}), `".."`},
		"directory above":          {archive(t, entry{name: "../"}), `".."`},
		"long part":                {archive(t, entry{name: strings.Repeat("n", 256)}), "255"},
		"long name":                {archive(t, entry{name: strings.Repeat("n/", 2100) + "n"}), "4095"},
		"deep name":                {archive(t, entry{name: strings.Repeat("n/", 600) + "n"}), "512"},
		"file through itself":      {through("link"), "symbolic"},
		"file through file":        {archive(t, entry{name: "file"}, entry{name: "file/inner"}), "not a directory"},
		"hard link above":          {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "../outside/file"}), `".."`},
		"hard link to lower layer": {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "etc/passwd"}), "before it in this layer"},
		"hard link to later file": {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "file"}, entry{name: "file"}),
			"before it in this layer"},
		"hard link to itself":      {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "./hard"}), "itself"},
		"hard link to a directory": {archive(t, entry{name: "directory/"}, entry{name: "hard", kind: tar.TypeLink, link: "directory"}), "no file"},
		"hard link to the root":    {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "."}), "no file"},
		"hard link in place of its target's directory": {archive(t, entry{name: "directory/file"},
			entry{name: "directory", kind: tar.TypeLink, link: "directory/file"}), "no file"},
		"hard link to a whiteout": {archive(t, entry{name: ".wh.gone"}, entry{name: "hard", kind: tar.TypeLink, link: "gone"}), "no file"},
		"hard link to a long whiteout": {archive(t, entry{name: "hard", kind: tar.TypeLink, link: ".wh." + strings.Repeat("n", 255)}),
			"before it in this layer"},
		"hard link below a long whiteout": {archive(t, entry{name: "hard", kind: tar.TypeLink, link: ".wh." + strings.Repeat("n", 255) + "/file"}),
			"before it in this layer"},
		"whiteout of nothing":             {archive(t, entry{name: "directory/.wh."}), "names nothing"},
		"whiteout of dot":                 {archive(t, entry{name: ".wh.."}), "names nothing"},
		"whiteout of the directory above": {archive(t, entry{name: "directory/.wh..."}), "names nothing"},
		"long whiteout through PAX":       {archive(t, entry{name: ".wh." + strings.Repeat("n", 256)}), "255"},
		"file in a long whiteout":         {archive(t, entry{name: ".wh." + strings.Repeat("n", 255) + "/file"}), "255"},
		"absolute hard link to another":   {archive(t, entry{name: "hard", kind: tar.TypeLink, link: "/etc/passwd"}), "before it in this layer"},
		"hard link through a link to the host": {archive(t, entry{name: "link", kind: tar.TypeSymlink, link: "../outside"},
			entry{name: "hard", kind: tar.TypeLink, link: "link/file"}), "before it in this layer"},
		"directories through a circle": {archive(t, entry{name: "a", kind: tar.TypeSymlink, link: "b/x"}, entry{name: "b", kind: tar.TypeSymlink, link: "a/x"},
			entry{name: "a/file"}), "symbolic links"},
		"symbolic link without target":   {relink(archive(t, entry{name: "link", kind: tar.TypeSymlink, link: "x"}), ""), "target"},
		"symbolic link with long target": {archive(t, entry{name: "link", kind: tar.TypeSymlink, link: strings.Repeat("t", 5000)}), "target"},
		"owner -1":                       {archive(t, entry{name: "file", uid: 1<<32 - 1}), "owner"},
		"owner too large":                {archive(t, entry{name: "file", gid: 1 << 40}), "owner"},
		"unknown type":                   {archive(t, entry{name: "file", kind: 'Z'}), "unknown"},
		"capability too large": {archive(t, entry{name: "file", attributes: map[string]string{"security.capability": strings.Repeat("c", 1<<17)}}),
			"does not store it"},
		"more entries than allowed": {archive(t, many...), "files and directories"},
		"more implied directories":  {archive(t, entry{name: deep + "file"}), "files and directories"},
		"more bytes than allowed":   {archive(t, entry{name: "big", content: strings.Repeat("b", testBytes)}), "bytes"},
		"sparse bomb":               {sparse(), "bytes"},
		"header claims 1 EiB":       {resize(archive(t, entry{name: "big"})), "bytes"},
		"cut in a file":             {archive(t, entry{name: "file", content: strings.Repeat("c", 5000)})[:2048], "ends within"},
		"cut in a header":           {archive(t, entry{name: "file"})[:1200], "ends within"},
		"not an archive":            {bytes.Repeat([]byte("no tar "), 512), "broken"},
	}
}

type refusal struct {
	archive []byte
	says    string
}

// through is a layer that writes through a symbolic link.
func through(target string) []byte {
	return mustArchive(entry{name: "a/"}, entry{name: "link", kind: tar.TypeSymlink, link: target}, entry{name: "link/file", content: "changed"})
}

func mustArchive(entries ...entry) []byte {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, e := range entries {
		if err := w.WriteHeader(e.header()); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			panic(err)
		}
	}
	return buffer.Bytes()
}

// plain is an archive of the oldest form, of one entry, whose header change edits.
func plain(kind byte, change func(header []byte)) []byte {
	header := make([]byte, 512)
	copy(header, "name")
	copy(header[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00")
	header[156] = kind
	copy(header[257:], "ustar\x0000")
	change(header)
	copy(header[148:], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	digits := []byte("000000\x00 ")
	for i := 5; i >= 0; i-- {
		digits[i] = byte('0' + sum&7)
		sum >>= 3
	}
	copy(header[148:], digits)
	return append(header, make([]byte, 1024)...)
}

func relink(_ []byte, target string) []byte {
	return plain(tar.TypeSymlink, func(header []byte) { copy(header[157:], target) })
}

func resize(_ []byte) []byte {
	return plain(tar.TypeReg, func(header []byte) {
		copy(header[124:136], []byte{0x80, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0}) // base 256
	})
}

// sparse is a file of 8 GiB that the archive has 512 bytes of.
func sparse() []byte {
	return plain(tar.TypeGNUSparse, func(header []byte) {
		copy(header[257:], "ustar  \x00")
		copy(header[124:], "00000001000\x00")
		copy(header[386:], "00000000000\x0000000001000\x00")
		copy(header[483:], "77777777777\x00")
	})
}
