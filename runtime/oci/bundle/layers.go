package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxLinks is how many symbolic links are followed, as in the kernel.
	maxLinks = 40
	// maxAccounts bounds /etc/passwd and /etc/group, in bytes.
	maxAccounts = 1 << 20
)

// opaque marks a folder that hides those of the layers below.
const opaque = "trusted.overlay.opaque"

// layers are the folders of an image as overlayfs stacks them, without mounting them. Links are
// followed inside the image, never out of it.
type layers struct {
	roots []*os.Root // the highest first
}

// openLayers opens the folders, which are given with the lowest first.
func openLayers(folders []string) (layers, error) {
	var l layers
	for i := len(folders) - 1; i >= 0; i-- {
		root, err := os.OpenRoot(folders[i])
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
	for range maxLinks {
		root, entry, link, err := l.walk(name)
		switch {
		case err != nil:
			return nil, &fs.PathError{Op: "read image", Path: name, Err: err}
		case link != "":
			name = link
			continue
		}
		return readRegular(root, entry, name)
	}
	return nil, &fs.PathError{Op: "read image", Path: name, Err: unix.ELOOP}
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

// walk finds the path in the layer that shows it, or the path that a symbolic link on the way leads
// to.
func (l layers) walk(name string) (root *os.Root, entry, link string, err error) {
	roots := l.roots // those whose folder at this point is visible
	parts := strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/")
	at := "."
	for i, part := range parts {
		next := path.Join(at, part)
		var visible []*os.Root
	search:
		for _, root := range roots {
			info, err := root.Lstat(next)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil:
				return nil, "", "", err
			case info.IsDir():
				visible = append(visible, root)
				if isOpaque(root, next) {
					break search
				}
				continue
			case len(visible) > 0: // hidden by a folder above
				break search
			case isWhiteout(info):
				return nil, "", "", fs.ErrNotExist
			case info.Mode().Type() == fs.ModeSymlink:
				target, err := root.Readlink(next)
				if err != nil {
					return nil, "", "", err
				}
				if !path.IsAbs(target) {
					target = path.Join("/", at, target)
				}
				return nil, "", path.Join(append([]string{target}, parts[i+1:]...)...), nil
			case i < len(parts)-1:
				return nil, "", "", unix.ENOTDIR
			default:
				return root, next, "", nil
			}
		}
		if len(visible) == 0 {
			return nil, "", "", fs.ErrNotExist
		}
		roots, at = visible, next
	}
	return roots[0], at, "", nil // a folder
}

// isWhiteout reports whether overlayfs shows nothing here and below: a character device 0/0.
func isWhiteout(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&fs.ModeCharDevice != 0 && stat.Rdev == 0
}

func isOpaque(root *os.Root, name string) bool {
	folder, err := root.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = folder.Close() }()
	var value [2]byte
	n, err := unix.Fgetxattr(int(folder.Fd()), opaque, value[:])
	return err == nil && n == 1 && value[0] == 'y'
}
