package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// DefaultPattern is the pattern of a search without one: everything.
const DefaultPattern = "**"

// Search describes everything below root that matches a glob pattern, sorted by path: files, links and other things,
// but no directories. In a pattern, `*` stays inside a path element, `**` spans them, and `{a,b}`, `[a-z]` and `?`
// work as usual. It is matched against the path relative to root, and against the base name when it has no slash.
// An empty pattern is DefaultPattern.
//
// Links to directories are reported and never followed, so loops end. Folders that cannot be read are left out. A
// search from above does not enter /proc and /sys. A root that is no directory and a bad pattern are KindInvalid.
func (f *Files) Search(ctx context.Context, root, pattern string) ([]Info, error) {
	if pattern == "" {
		pattern = DefaultPattern
	}
	if !doublestar.ValidatePattern(pattern) {
		return nil, invalid("pattern", "%q is not a valid glob", pattern)
	}
	if strings.HasPrefix(pattern, "/") {
		return nil, invalid("pattern", "%q must be relative to the root of the search", pattern)
	}
	baseOnly := !strings.Contains(pattern, "/")
	return f.walk(ctx, root, walk{keep: func(rel, base string, dir bool) bool {
		if dir {
			return false
		}
		if baseOnly {
			return doublestar.MatchUnvalidated(pattern, base)
		}
		return doublestar.MatchUnvalidated(pattern, rel)
	}})
}

// List describes everything in a directory, directories included, down to depth levels, sorted by path. Depth 0 means
// 1: the directory's own entries. What Search says about links, unreadable folders, /proc and /sys holds here too.
func (f *Files) List(ctx context.Context, path string, depth int) ([]Info, error) {
	if depth < 0 {
		return nil, invalid("depth", "must be at least 1, got %d", depth)
	}
	return f.walk(ctx, path, walk{depth: max(depth, 1), keep: func(string, string, bool) bool { return true }})
}

// walk is one pass over a tree.
type walk struct {
	keep  func(rel, base string, dir bool) bool // whether to report an entry
	depth int                                   // levels to go down; 0 is all
	names *names
	found []Info
	todo  []folder
}

// folder is a directory that is still to be read. Paths are kept, not open files, so a deep tree needs one file only.
type folder struct {
	path   string
	prefix string // what comes before the names of its entries in a path relative to the root
	level  int
}

func (f *Files) walk(ctx context.Context, root string, w walk) ([]Info, error) {
	abs, err := f.resolve(root)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(abs); err != nil {
		return nil, classify(abs, err)
	} else if !info.IsDir() {
		return nil, invalid(abs, "is not a directory")
	}
	w.names = newNames()
	w.found = []Info{} // never nil: it becomes a JSON array
	w.todo = []folder{{path: abs, level: 1}}
	for len(w.todo) > 0 {
		next := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if err := w.read(ctx, next); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%s: stopped: %w", abs, ctx.Err())
			}
			if next.level == 1 {
				return nil, classify(abs, err)
			}
		}
	}
	slices.SortFunc(w.found, func(a, b Info) int { return cmp.Compare(a.Path, b.Path) })
	return w.found, nil
}

// read reports the entries of one folder and notes the folders in it.
func (w *walk) read(ctx context.Context, dir folder) error {
	flags := os.O_RDONLY | unix.O_DIRECTORY
	if dir.level > 1 {
		flags |= unix.O_NOFOLLOW // it may have become a link since it was seen
	}
	file, err := os.OpenFile(dir.path, flags, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	fd := int(file.Fd())
	base := strings.TrimSuffix(dir.path, "/") + "/"
	for {
		entries, err := file.ReadDir(1024)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, entry := range entries {
			name, path := entry.Name(), base+entry.Name()
			if w.keep(dir.prefix+name, name, entry.IsDir()) {
				// An entry that vanished meanwhile is left out.
				if info, err := infoAt(fd, name, path, unix.AT_SYMLINK_NOFOLLOW, w.names); err == nil {
					w.found = append(w.found, info)
				}
			}
			if entry.IsDir() && dir.level != w.depth && path != "/proc" && path != "/sys" {
				w.todo = append(w.todo, folder{path, dir.prefix + name + "/", dir.level + 1})
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
