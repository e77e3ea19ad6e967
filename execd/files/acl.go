package files

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// accessACL is the extended attribute with a file's POSIX ACL, see acl(5): a version of four bytes,
// then entries of a tag and the permissions, two bytes each, and an id of four.
const accessACL = "system.posix_acl_access"

// The parts of accessACL.
const (
	aclHeader, aclEntry = 4, 8
	aclMask, aclOther   = 0x10, 0x20 // tags: what bounds all entries but the owner's, and that of everyone else
)

// copyACL gives a file the ACL of the one at from, or none where that has none: a new file has one
// that its directory gives it. Where nothing is at from, and on file systems without ACLs, it does
// nothing. Until the file gets its mode, only its owner may use it.
func copyACL(to *os.File, from string) error {
	acl, err := readACL(from)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	case acl == nil:
		err = unix.Fremovexattr(int(to.Fd()), accessACL)
	default:
		for entry := aclHeader; entry+aclEntry <= len(acl); entry += aclEntry {
			if tag := binary.LittleEndian.Uint16(acl[entry:]); tag == aclMask || tag == aclOther {
				binary.LittleEndian.PutUint16(acl[entry+2:], 0) // chmod(2) sets them
			}
		}
		err = unix.Fsetxattr(int(to.Fd()), accessACL, acl, 0)
	}
	if noACL(err) {
		return nil
	}
	return err
}

// readACL returns the ACL of the file at path, nil when it has none.
func readACL(path string) ([]byte, error) {
	for {
		size, err := unix.Lgetxattr(path, accessACL, nil)
		if noACL(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		acl := make([]byte, size)
		size, err = unix.Lgetxattr(path, accessACL, acl)
		switch {
		case errors.Is(err, unix.ERANGE): // it has become longer
			continue
		case noACL(err):
			return nil, nil
		}
		return acl[:max(size, 0)], err
	}
}

// noACL reports whether a file has no ACL, or its file system knows none.
func noACL(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) }
