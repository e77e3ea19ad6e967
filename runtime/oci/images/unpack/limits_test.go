package unpack_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images/unpack"
	"sandbox.internal/test/wait"
)

// TestMemoryOfDirectories: what is kept for the times of directories takes little memory, however
// many entries they have and however long the headers.
func TestMemoryOfDirectories(t *testing.T) {
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
				t.Errorf("the directory is of %v, %v, want %v", info.ModTime(), err, last)
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
		"directory": {entry{name: "name/", attributes: map[string]string{"user.name": strings.Repeat("v", 100)}}, inode + 2*block},
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
	directory := t.TempDir()
	image, mounted := filepath.Join(directory, "image"), filepath.Join(directory, "mounted")
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
		entry{name: "directory/", attributes: map[string]string{"user.a": strings.Repeat("v", 60), "user.b": strings.Repeat("v", 4000)}},
		entry{name: "directory/", attributes: map[string]string{"security.capability": capability}})
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
