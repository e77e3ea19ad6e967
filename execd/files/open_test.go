package files_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestOpen(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "file"), "0123456789")
	must(t, os.Symlink("file", filepath.Join(root, "link")))
	for _, path := range []string{"file", "link"} {
		t.Run(path, func(t *testing.T) {
			download, err := f.Open(path)
			must(t, err)
			defer download.Close()
			wantEqual(t, "path", download.Info.Path, filepath.Join(root, path))
			wantEqual(t, "type", download.Info.Type, files.TypeFile)
			wantEqual(t, "size", download.Info.Size, 10)
			_, err = download.Content.Seek(4, io.SeekStart)
			must(t, err)
			content, err := io.ReadAll(download.Content)
			must(t, err)
			wantEqual(t, "content from 4", string(content), "456789")
			if _, ok := download.Content.(*os.File); !ok {
				t.Errorf("content is a %T: sendfile cannot be used", download.Content)
			}
		})
	}
}

func TestOpenOfFilesWithoutTrueSize(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "empty"), "")
	tests := []struct{ name, path, want string }{
		{"proc", "/proc/self/status", "Threads:"},
		{"sysfs, a page whatever it holds", "/sys/devices/system/cpu/online", "0"},
		{"an empty file", "empty", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			download, err := f.Open(test.path)
			must(t, err)
			defer download.Close()
			end, err := download.Content.Seek(0, io.SeekEnd)
			must(t, err)
			wantEqual(t, "size", download.Info.Size, end)
			_, err = download.Content.Seek(0, io.SeekStart)
			must(t, err)
			content, err := io.ReadAll(download.Content)
			must(t, err)
			wantEqual(t, "bytes", int64(len(content)), end)
			if !strings.Contains(string(content), test.want) {
				t.Errorf("content %q does not have %q", content, test.want)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	f, root := newFiles(t)
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	must(t, os.Symlink("fifo", filepath.Join(root, "link")))
	socket, err := net.Listen("unix", filepath.Join(root, "socket"))
	must(t, err)
	defer socket.Close()
	tests := []struct {
		name, path string
		kind       files.Kind
		part       string
	}{
		{"missing", "missing", files.KindNotFound, "/missing: no such file"},
		{"directory", "home", files.KindInvalid, "/home: is a directory"},
		{"FIFO, which would block", "fifo", files.KindInvalid, "/fifo: is not a regular file"},
		{"link to a FIFO", "link", files.KindInvalid, "/link: is not a regular file"},
		{"socket", "socket", files.KindInvalid, "/socket: is not a regular file"},
		{"device", "/dev/zero", files.KindInvalid, "/dev/zero: is not a regular file"},
		{"a log that never ends", "/proc/kmsg", files.KindInvalid, "/proc/kmsg: has no end"},
		{"memory that starts further on", "/proc/self/mem", files.KindInvalid, "/proc/self/mem: cannot be read from its start"},
		{"empty path", "", files.KindInvalid, "must not be empty"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := f.Open(test.path)
			wantError(t, err, test.kind, test.part)
		})
	}
}
