package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	paxAttribute    = "SCHILY.xattr."
	opaqueAttribute = "trusted.overlay.opaque"
)

func setOpaque(fd int) error {
	if err := unix.Fsetxattr(fd, opaqueAttribute, []byte("y"), 0); err != nil {
		return fmt.Errorf("set %s: %w", opaqueAttribute, err)
	}
	return nil
}

// setAttributes sets owner, mode and extended attributes, in this order: a new owner takes
// set-user-id bits and capabilities away.
func (l *layer) setAttributes(fd int, header *tar.Header) error {
	if err := unix.Fchown(fd, header.Uid, header.Gid); err != nil {
		return fmt.Errorf("change owner: %w", err)
	}
	if err := unix.Fchmod(fd, permissions(header)); err != nil {
		return fmt.Errorf("change mode: %w", err)
	}
	attributes, size := attributesOf(header)
	if size = beside(size); size > 0 {
		if err := l.addBytes(size); err != nil {
			return err
		}
		if err := l.take(size); err != nil {
			return err
		}
	}
	for _, a := range attributes {
		if err := setAttribute(fd, a); err != nil {
			return fmt.Errorf("set attribute %s: %w", quote(a.name), err)
		}
	}
	return nil
}

type attribute struct{ name, value string }

// setAttribute leaves out an attribute of the user that the file system does not store.
func setAttribute(fd int, a attribute) error {
	err := unix.Fsetxattr(fd, a.name, []byte(a.value), 0)
	user := strings.HasPrefix(a.name, "user.")
	switch {
	case user && errors.Is(err, unix.ENOTSUP):
		return nil
	// ext4 has one block for all attributes of a file, and says ENOSPC of more.
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE), errors.Is(err, unix.ENOSPC) && !isFull(fd):
		if user {
			return nil
		}
		return refusedf("the file system does not store it: %v", err)
	}
	return err
}

// isFull says whether the file system may have no room for an attribute, of which Linux allows 64
// KiB.
func isFull(fd int) bool {
	const (
		leastBytes  = 1 << 20
		leastInodes = 128 // tmpfs counts each KiB of attributes as an inode
	)
	var disk unix.Statfs_t
	if err := unix.Fstatfs(fd, &disk); err != nil {
		return true
	}
	return int64(disk.Bfree)*disk.Bsize < leastBytes || disk.Files > 0 && disk.Ffree < leastInodes
}

// attributesOf returns the extended attributes that are kept, and how many bytes they have
// together. Those that are left out when the file system has no room are last.
func attributesOf(header *tar.Header) (attributes []attribute, size int64) {
	for key, value := range header.PAXRecords {
		name, found := strings.CutPrefix(key, paxAttribute)
		if found && keepsAttribute(name) {
			attributes = append(attributes, attribute{name, value})
			size += int64(len(name) + len(value))
		}
	}
	slices.SortFunc(attributes, func(a, b attribute) int { return strings.Compare(a.name, b.name) }) // security.* before user.*
	return attributes, size
}

func keepsAttribute(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// permissions are the mode bits with set-user-id, set-group-id and the sticky bit.
func permissions(header *tar.Header) uint32 {
	return uint32(header.Mode) & 0o7777
}

func setTimes(parent int, base string, header *tar.Header) error {
	times := timesOf(header.ModTime)
	if err := unix.UtimesNanoAt(parent, base, times[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// timesOf returns access and modification time. What no file system can store becomes the epoch.
func timesOf(modified time.Time) [2]unix.Timespec {
	spec, err := unix.TimeToTimespec(modified)
	if err != nil {
		spec = unix.Timespec{}
	}
	return [2]unix.Timespec{spec, spec}
}
