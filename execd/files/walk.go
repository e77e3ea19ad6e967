package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// Defaults of requests (contract, searchFiles and listDirectory).
const (
	// DefaultPattern is the pattern of a search without one: everything.
	DefaultPattern = "**"
	// DefaultDepth is how many levels a listing goes down: the directory's own entries.
	DefaultDepth = 1
)

// walkMemory bounds what one walk holds of the names in the directories that it is in, in bytes;
// each may hold half of what is left, and leastDirectory at least.
const (
	walkMemory     = 16 << 20
	leastDirectory = 4 << 10
)

// Search calls found for everything below root that matches a glob pattern, in the order of the
// paths (byte by byte): files, links and other things, but no directories. In a pattern, `*` stays
// inside a path element, `**` spans them, and `{a,b}`, `[a-z]` and `?` work as usual. It is matched
// against the path relative to root, and against the base name when it has no slash. An empty
// pattern is DefaultPattern.
//
// Links to directories are reported and never followed, so loops end. Directories that cannot be
// read are left out. A search from above does not enter /proc and /sys. A root that is no directory
// and a bad pattern are KindInvalid. An error of found ends the search and is returned.
//
// However many files there are, the search holds about 16 MiB: a directory with more names than fit
// is read several times.
func (f *Files) Search(ctx context.Context, root, pattern string, found func(Info) error) error {
	if pattern == "" {
		pattern = DefaultPattern
	}
	if !doublestar.ValidatePattern(pattern) {
		return invalid("pattern", "%q is not a valid glob", pattern)
	}
	if strings.HasPrefix(pattern, "/") {
		return invalid("pattern", "%q must be relative to the root of the search", pattern)
	}
	baseOnly := !strings.Contains(pattern, "/")
	return f.walk(ctx, root, walk{found: found, keep: func(rel, base string, dir bool) bool {
		if dir {
			return false
		}
		if baseOnly {
			return doublestar.MatchUnvalidated(pattern, base)
		}
		return doublestar.MatchUnvalidated(pattern, rel)
	}})
}

// List calls found for everything in a directory, directories included, down to depth levels, in
// the order of the paths. Depth 0 means DefaultDepth. Links, unreadable directories, /proc and
// /sys, errors and memory are treated as by Search.
func (f *Files) List(ctx context.Context, path string, depth int, found func(Info) error) error {
	if depth < 0 {
		return invalid("depth", "must be at least 1, got %d", depth)
	}
	return f.walk(ctx, path, walk{depth: cmp.Or(depth, DefaultDepth), found: found, keep: func(string, string, bool) bool { return true }})
}

// walk is one pass over a tree.
type walk struct {
	keep  func(rel, base string, dir bool) bool // whether to report an entry
	found func(Info) error
	depth int // levels to go down; 0 is all
	names *names
	room  int   // bytes that directories may still hold
	ended error // why nothing more is wanted
}

// directory is a directory on the way down. Its file is closed while a directory in it is read, so
// a deep tree needs one file only.
type directory struct {
	path   string // ends with a slash
	prefix string // what comes before the names of its entries in a path relative to the root
	level  int
	file   *os.File // nil while it is closed
}

func (f *Files) walk(ctx context.Context, root string, w walk) error {
	abs, err := f.resolve(root)
	if err != nil {
		return err
	}
	if info, err := os.Stat(abs); err != nil {
		return classify(abs, err)
	} else if !info.IsDir() {
		return invalid(abs, "is not a directory")
	}
	w.names, w.room = newNames(), f.walkMemory
	err = w.report(ctx, &directory{path: strings.TrimSuffix(abs, "/") + "/", level: 1})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: stopped: %w", abs, ctx.Err())
	case w.ended != nil:
		return w.ended
	}
	return classify(abs, err)
}

// report reports what is in a directory and below it. It returns why the directory cannot be read,
// or w.ended.
func (w *walk) report(ctx context.Context, dir *directory) error {
	defer dir.close()
	for after, more := "", true; more; {
		entries, err := w.read(ctx, dir, after, max(w.room/2, leastDirectory))
		if err != nil {
			return err
		}
		w.room -= entries.size()
		for i := range entries.len() {
			key := entries.key(i)
			if err := w.visit(ctx, dir, key); err != nil {
				return err
			}
			after = key
		}
		w.room += entries.size()
		more = entries.more
	}
	return nil
}

// visit reports an entry of a directory, or what is below it when the key ends with a slash.
func (w *walk) visit(ctx context.Context, dir *directory, key string) error {
	if w.ended = ctx.Err(); w.ended != nil {
		return w.ended
	}
	path := dir.path + key
	if strings.HasSuffix(key, "/") {
		dir.close()
		_ = w.report(ctx, &directory{path: path, prefix: path[len(dir.path)-len(dir.prefix):], level: dir.level + 1}) // unreadable, or gone
		return w.ended
	}
	if err := dir.open(); err != nil {
		return err
	}
	info, err := infoAt(int(dir.file.Fd()), key, path, unix.AT_SYMLINK_NOFOLLOW, w.names)
	if err != nil {
		return nil // an entry that vanished meanwhile is left out
	}
	w.ended = w.found(info)
	return w.ended
}

// read returns the first keys of a directory in their order that come after a given one: the name
// of each entry to report, and the name with a slash of each directory to go down to, so that the
// order of the keys is the order of the paths. They take at most limit bytes.
func (w *walk) read(ctx context.Context, dir *directory, after string, limit int) (*keys, error) {
	if err := dir.open(); err != nil {
		return nil, err
	}
	if _, err := dir.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	first := &keys{limit: limit}
	add := func(key string) {
		if key > after {
			first.add(key)
		}
	}
	for {
		entries, err := dir.file.ReadDir(1024)
		if w.ended = ctx.Err(); w.ended != nil {
			return nil, w.ended
		}
		for _, entry := range entries {
			name := entry.Name()
			if w.keep(dir.prefix+name, name, entry.IsDir()) {
				add(name)
			}
			if path := dir.path + name; entry.IsDir() && dir.level != w.depth && path != "/proc" && path != "/sys" {
				add(name + "/")
			}
		}
		if errors.Is(err, io.EOF) {
			first.sort()
			return first, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (d *directory) open() (err error) {
	if d.file != nil {
		return nil
	}
	flags := os.O_RDONLY | unix.O_DIRECTORY
	path := d.path
	if d.level > 1 {
		flags |= unix.O_NOFOLLOW             // it may have become a link since it was seen
		path = strings.TrimSuffix(path, "/") // with the slash a link would be followed
	}
	d.file, err = os.OpenFile(path, flags, 0)
	return err
}

func (d *directory) close() {
	if d.file != nil {
		d.file.Close() // only read from
		d.file = nil
	}
}
