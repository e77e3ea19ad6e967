// Package files is the file engine of the sandbox: what the daemon does to files and directories,
// without HTTP.
//
// Rules that hold for every method:
//
//   - A path may be absolute, relative to the working directory (Options.Root), or start with "~/"
//     for the user's home. It is made absolute and cleaned lexically. An empty path and one with a
//     NUL byte are invalid.
//   - A request with several paths is checked completely before its first change, in the order of
//     the paths, so that a mistake in one of them changes nothing. A failure after the check (a full
//     disk, say) can leave a part done.
//   - Modes are written as the documents do: the octal digits as a decimal number, so 644 means
//     0644.
//   - Errors that a caller can act on are *Error values of a closed set of kinds (KindOf); all
//     others are internal.
//
// New content is written to a temporary file in the target's directory, flushed to disk and
// renamed, so a reader sees the old content or the new one, never a half. Files that cannot be
// replaced by a file of the daemon (a mount point; where the daemon is not root, a file of another
// user or in a directory that is closed to it) are written in place instead. The names of temporary
// files start with TempPrefix; only a daemon that was killed leaves one behind, and it can be
// removed at any time.
package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// TempPrefix starts the name of every temporary file and directory that this package makes.
const TempPrefix = ".execd-"

// Options says where a Files finds its way.
type Options struct {
	// Root is the working directory that relative paths start from. Empty means the process's own.
	Root string
	// Home replaces a leading "~". Empty means $HOME, and "/" where that is not set either.
	Home string
}

// Files does the file operations of one sandbox. It keeps no state between calls and is safe for
// concurrent use.
type Files struct {
	root   string
	home   string
	blocks sync.Pool // of *[]byte: buffers of uploads, so that many small ones do not allocate one each

	places places // where content is put just now

	walkMemory int // see the constant
}

// New returns a Files. It touches no file.
func New(opts Options) *Files {
	home := opts.Home
	if home == "" {
		home = os.Getenv("HOME")
	}
	if home == "" {
		home = "/"
	}
	return &Files{
		root:   opts.Root,
		home:   home,
		blocks: sync.Pool{New: func() any { b := make([]byte, 0, blockSize); return &b }},

		walkMemory: walkMemory,
	}
}

// resolve turns a path as given by a caller into an absolute, clean one.
func (f *Files) resolve(path string) (string, error) {
	switch {
	case path == "":
		return "", invalid("path", "must not be empty")
	case strings.ContainsRune(path, 0):
		return "", invalid(fmt.Sprintf("%q", path), "must not contain a NUL byte")
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = filepath.Join(f.home, path[1:])
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.root, path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find the working directory for %s: %w", path, err)
	}
	return abs, nil
}

// followAll is filepath.EvalSymlinks with an error for links that never end, which classify
// handles.
func followAll(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if errno := unix.Errno(0); err != nil && !errors.As(err, &errno) {
		return "", unix.ELOOP
	}
	return target, err
}

// resolveAll resolves paths in their order and drops those that name the same place again.
func (f *Files) resolveAll(paths []string) ([]string, error) {
	out := make([]string, 0, len(paths))
	seen := make(map[string]bool, len(paths))
	for _, p := range paths {
		abs, err := f.resolve(p)
		if err != nil {
			return nil, err
		}
		if !seen[abs] {
			seen[abs] = true
			out = append(out, abs)
		}
	}
	return out, nil
}
