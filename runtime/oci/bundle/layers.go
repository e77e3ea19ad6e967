package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxLinks is how many symbolic links are followed, as in the kernel.
	maxLinks = 40
	// maxSteps is how many parts of paths are looked up for one path.
	maxSteps = 2000
	// maxAccounts bounds /etc/passwd and /etc/group, in bytes.
	maxAccounts = 1 << 20
)

// opaque marks a directory that hides those of the layers below.
const opaque = "trusted.overlay.opaque"

// layers are the directories of an image as overlayfs stacks them, without mounting them. Links are
// followed inside the image, never out of it.
type layers struct {
	roots []*os.Root // the highest first
}

// openLayers opens the directories, which are given with the lowest first.
func openLayers(directories []string) (layers, error) {
	var l layers
	for i := len(directories) - 1; i >= 0; i-- {
		root, err := os.OpenRoot(directories[i])
		if err != nil {
			l.close()
			return layers{}, fmt.Errorf("open layer: %w", err)
		}
		l.roots = append(l.roots, root)
	}
	return l, nil
}

func (l layers) close() {
	for _, root := range l.roots {
		_ = root.Close()
	}
}

// read returns the content of the regular file at the absolute path. It returns [fs.ErrNotExist].
func (l layers) read(name string) ([]byte, error) {
	found, err := l.resolve(name)
	switch {
	case err != nil:
	case found.missing:
		err = fs.ErrNotExist
	case found.directory:
		return nil, fmt.Errorf("%s of the image is not a regular file", name)
	default:
		return readRegular(found.root, strings.TrimPrefix(found.path, "/"), name)
	}
	return nil, &fs.PathError{Op: "read image", Path: name, Err: err}
}

func readRegular(root *os.Root, entry, name string) ([]byte, error) {
	// Without O_NONBLOCK a FIFO would wait for a writer.
	file, err := root.OpenFile(entry, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s of the image is not a regular file", name)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxAccounts+1))
	if err == nil && len(content) > maxAccounts {
		return nil, fmt.Errorf("%s of the image is larger than %d bytes", name, maxAccounts)
	}
	return content, err
}

// place is where a path leads in an image, for a process whose root directory that is.
type place struct {
	path      string   // absolute, without symbolic links
	links     []string // the symbolic links on the way, without links before their last part
	missing   bool     // the image has nothing there
	directory bool
	root      *os.Root // the layer that shows what is no directory
	entered   []level  // the directories on the way, also to where links lead
}

// resolve follows the path as the kernel does. What is missing counts as directories, as which the
// runtime makes it.
func (l layers) resolve(name string) (place, error) {
	var p place
	way := []level{{roots: l.roots, at: "."}} // the root, and the directories of the names
	var names []string                        // more than directories when the rest is missing
	rest := name
	for steps := 0; rest != ""; steps++ {
		if steps > maxSteps || len(rest) > unix.PathMax {
			return p, unix.ENAMETOOLONG
		}
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch {
		case part == "" || part == ".":
			continue
		case p.root != nil:
			return p, unix.ENOTDIR
		case part == "..":
			names = names[:max(len(names)-1, 0)]
			way = way[:min(len(way), len(names)+1)]
			continue
		case len(way) <= len(names):
			names = append(names, part)
			continue
		}
		found, err := way[len(way)-1].child(part)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			names = append(names, part)
		case err != nil:
			return p, err
		case found.link != "":
			p.links = append(p.links, "/"+path.Join(append(slices.Clone(names), part)...))
			if len(p.links) > maxLinks {
				return p, unix.ELOOP
			}
			if path.IsAbs(found.link) {
				way, names = way[:1], nil
			}
			rest = found.link + "/" + rest
		case found.file != nil:
			names, p.root = append(names, part), found.file
		default:
			names, way = append(names, part), append(way, found.level)
			p.entered = append(p.entered, found.level)
		}
	}
	p.path = "/" + path.Join(names...)
	p.directory = p.root == nil && len(way) > len(names)
	p.missing = p.root == nil && !p.directory
	return p, nil
}

// level is a directory of an image, by the layers that show something of it.
type level struct {
	roots []*os.Root // the highest first
	at    string     // its path in each
}

// entry is what a directory has of a name: a symbolic link, something else that is no directory, or
// a directory.
type entry struct {
	link  string   // its target
	file  *os.Root // the layer that has it
	level level
}

// child returns what the directory has of the name. It returns [fs.ErrNotExist].
func (l level) child(name string) (entry, error) {
	next := level{at: path.Join(l.at, name)}
	for _, root := range l.roots {
		info, err := root.Lstat(next.at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return entry{}, err
		case info.IsDir():
			next.roots = append(next.roots, root)
			if isOpaque(root, next.at) {
				return entry{level: next}, nil
			}
			continue
		case len(next.roots) > 0: // hidden by a directory above
			return entry{level: next}, nil
		case isWhiteout(info):
			return entry{}, fs.ErrNotExist
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := root.Readlink(next.at)
			return entry{link: target}, err
		}
		return entry{file: root}, nil
	}
	if len(next.roots) == 0 {
		return entry{}, fs.ErrNotExist
	}
	return entry{level: next}, nil
}

// isWhiteout reports whether overlayfs shows nothing here and below: a character device 0/0.
func isWhiteout(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&fs.ModeCharDevice != 0 && stat.Rdev == 0
}

func isOpaque(root *os.Root, name string) bool {
	directory, err := root.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = directory.Close() }()
	var value [2]byte
	n, err := unix.Fgetxattr(int(directory.Fd()), opaque, value[:])
	return err == nil && n == 1 && value[0] == 'y'
}
