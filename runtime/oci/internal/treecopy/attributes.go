package treecopy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttributes is the kernel's limit for the names of a file's extended attributes, and for one
// value.
const maxAttributes = 64 << 10

// ownAttributes are attributes of an overlay's upper layer that mean nothing in a lower one: they
// are about the layers below as they were then.
var ownAttributes = []string{
	"trusted.overlay.origin", "trusted.overlay.impure", "trusted.overlay.nlink", "trusted.overlay.uuid", "trusted.overlay.upper",
}

// DirectoryAttributes gives a directory the owner, mode, extended attributes and times of another
// one.
func DirectoryAttributes(from, to *os.File) error {
	c := &Copy{names: make([]byte, maxAttributes), value: make([]byte, maxAttributes)}
	return c.directoryAttributes(from, to, to.Name())
}

func (c *Copy) directoryAttributes(from, to *os.File, name string) error {
	var info unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &info); err != nil {
		return &os.PathError{Op: "stat", Path: shown(name), Err: err}
	}
	return c.attributes(int(from.Fd()), int(to.Fd()), to, ".", &info)
}

// attributes copies owner, mode, extended attributes and times to what was made at a name, which
// both descriptors, of any kind, have open.
func (c *Copy) attributes(from, to int, directory *os.File, entry string, info *unix.Stat_t) error {
	in := int(directory.Fd())
	link := info.Mode&unix.S_IFMT == unix.S_IFLNK
	err := unix.Fchownat(in, entry, int(info.Uid), int(info.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && !link {
		err = unix.Fchmodat(in, entry, info.Mode&0o7777, 0) // after the owner, whose change clears set-user-id
	}
	if err == nil {
		err = c.extended(from, to)
	}
	if err == nil {
		err = unix.UtimesNanoAt(in, entry, []unix.Timespec{info.Atim, info.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return &os.PathError{Op: "copy the attributes of", Path: shown(entry), Err: err}
	}
	return nil
}

// extended copies the extended attributes.
func (c *Copy) extended(from, to int) error {
	source, target := descriptorPath(from), descriptorPath(to)
	n, err := unix.Listxattr(source, c.names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(c.names[:n]), "\x00") {
		if name == "" || slices.Contains(ownAttributes, name) {
			continue
		}
		length, err := unix.Getxattr(source, name, c.value)
		if errors.Is(err, unix.ENODATA) { // it was removed meanwhile
			continue
		}
		if err == nil {
			err = unix.Setxattr(target, name, c.value[:length], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("extended attribute %s: %w", shown(name), err)
		}
	}
	return nil
}
