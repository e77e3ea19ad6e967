package api_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// TestFilesOfAnother: a daemon that is not root changes what it may write to, although it can put
// no other file in its place.
func TestFilesOfAnother(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to have files of two users")
	}
	const daemon = 65534 // its user and group
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o711))
	closed, open, spare := filepath.Join(dir, "closed"), filepath.Join(dir, "open"), filepath.Join(dir, "spare")
	for directory, mode := range map[string]os.FileMode{closed: 0o755, open: 0o777, spare: 0o777} {
		must(t, os.Mkdir(directory, 0o700))
		must(t, os.Chmod(directory, mode))
	}
	execd := &child{Unprivileged: true, Env: []string{"TMPDIR=" + spare}}
	d := execd.start(t, newTransport(t))
	replace := func(path string) (*http.Response, error) {
		return d.client.ReplaceInFiles(t.Context(), gen.ReplacementByPath{path: {Old: "old", New: "new"}})
	}
	send := func(more string) func(path string) (*http.Response, error) {
		return func(path string) (*http.Response, error) {
			body := form("metadata", fmt.Sprintf(`{"path":%q%s}`, path, more), "file", "new text")
			return d.client.UploadFilesWithBody(t.Context(), nil, formType["Content-Type"], strings.NewReader(body))
		}
	}
	for _, test := range []struct {
		name, directory string
		owner           int
		mode            os.FileMode
		change          func(path string) (*http.Response, error)
		status          int
		left            os.FileMode // the file's mode afterwards
	}{
		{"replace in a closed directory", closed, 0, 0o666, replace, 200, 0o666},
		{"replace in a file of another", open, 0, 0o646, replace, 200, 0o646},
		{"replace in an own file in a closed directory", closed, daemon, 0o600, replace, 200, 0o600},
		{"upload to a closed directory", closed, 0, 0o666, send(""), 200, 0o666},
		{"upload over a file of another", open, 0, 0o622, send(""), 200, 0o622},
		{"upload over an own file in a closed directory, with a mode", closed, daemon, 0o604, send(`,"mode":640`), 200, 0o640},
		{"upload over a file of another, with a mode", open, 0, 0o666, send(`,"mode":600`), 403, 0o666},
		{"upload over a file of another, with an owner", open, 0, 0o666, send(`,"owner":"65534"`), 403, 0o666},
		{"replace in a file that is closed", open, 0, 0o644, replace, 403, 0o644},
		{"upload over a file that is closed", closed, 0, 0o644, send(""), 403, 0o644},
	} {
		t.Run(test.name, func(t *testing.T) {
			path, link := filepath.Join(test.directory, "file"), filepath.Join(open, "link")
			write(t, path, "old text")
			must(t, os.Chmod(path, test.mode))
			must(t, os.Chown(path, test.owner, test.owner))
			must(t, os.Symlink(path, link))
			defer os.Remove(path)
			defer os.Remove(link)
			response, err := test.change(link)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != test.status {
				t.Errorf("status %d, want %d", response.StatusCode, test.status)
			}
			want := "old text"
			if test.status == http.StatusOK {
				want = "new text"
			}
			if got := read(t, path); got != want {
				t.Errorf("the file has %q, want %q", got, want)
			}
			info, err := os.Lstat(path)
			must(t, err)
			if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != test.owner || info.Mode() != test.left {
				t.Errorf("the file is of user %d, mode %v; want %d, %v", owner, info.Mode(), test.owner, test.left)
			}
			for _, directory := range []string{closed, open, spare} {
				if left, _ := filepath.Glob(filepath.Join(directory, ".execd-*")); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
			}
		})
	}
}
