package unpack

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/remove"
)

// inRoot has the kernel resolve every name as for a process whose root directory is the layer's
// directory: an absolute symbolic link, or one with ".." too many, leads to somewhere else in it.
const inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxLinks is how many symbolic links a name leads through at most, as in the kernel.
const maxLinks = 40

var (
	errNotDirectory = refusedf("the name leads through something that is not a directory of this layer")
	errLinks        = refusedf("the name leads through too many symbolic links")
	errLongPath     = refusedf("the name is longer than %d bytes where symbolic links lead", maxName)
)

// find opens an existing directory. The caller closes the descriptor.
func (l *layer) find(name string) (int, error) {
	fd, err := unix.Openat2(l.root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inRoot})
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, errLinks
	case errors.Is(err, unix.ENAMETOOLONG):
		return -1, errLongPath
	}
	return fd, err
}

// enter opens a directory that entries are made in, and makes it, and those above it, where there
// are none. The descriptor is valid until the next call.
func (l *layer) enter(name string) (int, error) {
	if l.open >= 0 && l.openName == name {
		return l.open, nil
	}
	fd, err := l.descend(name)
	if err != nil {
		return -1, err
	}
	l.forget()
	l.open, l.openName = fd, name
	return fd, nil
}

func (l *layer) forget() {
	if l.open >= 0 {
		_ = unix.Close(l.open)
		l.open = -1
	}
}

// descend opens a directory and makes what is missing on the way, also where a symbolic link
// points: what it points to may be in a layer below.
func (l *layer) descend(name string) (int, error) {
	fd, err := l.find(name)
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || name == "." {
		return fd, err
	}
	w := walk{layer: l, at: ".", fd: -1, rest: name}
	defer w.close()
	for w.rest != "" {
		var part string
		part, w.rest, _ = strings.Cut(w.rest, "/")
		if err := w.step(part); err != nil {
			return -1, err
		}
	}
	return w.take()
}

// walk is the way to a directory, one part of the name after another.
type walk struct {
	layer *layer
	at    string // where it is, without symbolic links
	fd    int    // a descriptor of that; -1 while there is none
	rest  string
	links int
}

func (w *walk) close() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
}

// take returns the descriptor of where it is, which is the caller's then.
func (w *walk) take() (int, error) {
	if err := w.open(); err != nil {
		return -1, err
	}
	fd := w.fd
	w.fd = -1
	return fd, nil
}

func (w *walk) open() (err error) {
	if w.fd < 0 {
		w.fd, err = w.layer.find(w.at)
	}
	return err
}

func (w *walk) moveTo(at string, fd int) {
	w.close()
	w.at, w.fd = at, fd
}

// step goes on to a part, or puts what a symbolic link says before the rest.
func (w *walk) step(part string) error {
	switch part {
	case "", ".":
		return nil
	case "..":
		w.moveTo(path.Dir(w.at), -1)
		return nil
	}
	if err := w.layer.ctx.Err(); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	if len(part) > maxComponent {
		return errLongPath
	}
	kind, err := w.layer.kind(w.fd, part)
	if err != nil {
		return err
	}
	if kind == unix.S_IFLNK {
		return w.follow(part)
	}
	next := join(w.at, part)
	switch {
	case len(next) > maxName:
		return errLongPath
	case strings.Count(next, "/") >= maxDepth:
		return errTooDeep
	}
	fd, err := w.layer.makeDirectory(w.fd, part)
	if errors.Is(err, unix.EEXIST) {
		return errNotDirectory
	}
	if err != nil {
		return err
	}
	w.moveTo(next, fd)
	if kind != unix.S_IFDIR {
		return w.layer.addImplied(next, fd)
	}
	return nil
}

func (w *walk) follow(link string) error {
	if w.links++; w.links > maxLinks {
		return errLinks
	}
	target := make([]byte, maxName+1)
	n, err := unix.Readlinkat(w.fd, link, target)
	if err != nil {
		return fmt.Errorf("read symbolic link: %w", err)
	}
	if target[0] == '/' {
		w.moveTo(".", -1)
	}
	w.rest = string(target[:n]) + "/" + w.rest
	if len(w.rest) > 2*maxName {
		return errLongPath
	}
	return nil
}

// makeDirectory makes a directory, which is opaque when it replaces a whiteout of this layer, and
// opens it. A directory that is there already is opened. It returns EEXIST for anything else that
// has the name.
func (l *layer) makeDirectory(parent int, base string) (int, error) {
	kind, err := l.kind(parent, base)
	if err != nil {
		return -1, err
	}
	switch kind {
	case unix.S_IFDIR:
		return openDirectory(parent, base)
	case unix.S_IFCHR, 0:
	default:
		return -1, unix.EEXIST
	}
	if err := l.addWhole(blockBytes); err != nil {
		return -1, err
	}
	if kind == unix.S_IFCHR {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return -1, fmt.Errorf("remove whiteout: %w", err)
		}
	}
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return -1, fmt.Errorf("make directory: %w", err)
	}
	fd, err := openDirectory(parent, base)
	if err != nil {
		return -1, err
	}
	// A directory with the set-group-id bit passes its group on.
	err = errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, 0o755))
	if err == nil && kind == unix.S_IFCHR {
		err = setOpaque(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make directory: %w", err)
	}
	return fd, nil
}

// openDirectory opens a directory for its attributes; the last part of its name is not followed.
func openDirectory(parent int, base string) (int, error) {
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open directory: %w", err)
	}
	return fd, nil
}

// kind returns the type bits of what has the name, 0 when nothing has. A character device is a
// whiteout that was written here: no entry makes devices.
func (l *layer) kind(parent int, base string) (uint32, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(parent, base, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at entry: %w", err)
	}
	return stat.Mode & unix.S_IFMT, nil
}

// replace makes something that is no directory, in place of what has its name.
func (l *layer) replace(parent int, base string, make func() error) error {
	err := make()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := remove.AllAt(l.ctx, parent, base); err != nil {
		return fmt.Errorf("replace earlier entry: %w", err)
	}
	return make()
}

func join(directory, base string) string {
	if directory == "." {
		return base
	}
	return directory + "/" + base
}
