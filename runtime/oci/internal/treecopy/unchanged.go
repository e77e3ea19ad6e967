package treecopy

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errChanged ends a walk at the first difference.
var errChanged = errors.New("the source has changed")

// Unchanged reports whether the source, at the moment of the call, is what Previous is a copy of.
// Processes may change it meanwhile: an entry that has not changed when it is looked at had not
// changed at that moment.
//
// False may also mean that this is not certain, as with an entry that had changed shortly before
// Previous was made.
func (c *Copy) Unchanged(ctx context.Context) (bool, error) {
	if c.Previous == nil {
		return false, nil
	}
	if err := c.prepare(); err != nil || c.untimed {
		return false, err
	}
	root, err := reopen(c.From)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	err = c.same(ctx, root, 0)
	for _, cause := range []error{errChanged, unix.ENOENT, unix.ENOTDIR, unix.ELOOP} {
		if errors.Is(err, cause) {
			return false, nil
		}
	}
	return err == nil, err
}

// same returns errChanged where a directory, or what is in it, is not as Previous has it.
func (c *Copy) same(ctx context.Context, directory *os.File, depth int) error {
	if depth > maxDepth {
		return errChanged
	}
	if err := c.known(directory); err != nil {
		return err
	}
	err := entries(ctx, directory, func(entry string) error {
		var info unix.Stat_t
		if err := unix.Fstatat(int(directory.Fd()), entry, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "stat", Path: shown(entry), Err: err}
		}
		if info.Mode&unix.S_IFMT != unix.S_IFDIR {
			if stat := statOf(&info); c.Previous.Index[stat.Inode].Stat != stat {
				return errChanged
			}
			return nil
		}
		below, err := openDirectory(directory, entry)
		if err != nil {
			return err
		}
		defer func() { _ = below.Close() }()
		return c.same(ctx, below, depth+1)
	})
	if err != nil {
		return err
	}
	// An entry that was taken away or exchanged meanwhile was not looked at, and may have changed
	// before the call.
	return c.known(directory)
}

// known returns errChanged for a directory whose own attributes are not those of Previous.
func (c *Copy) known(directory *os.File) error {
	var info unix.Stat_t
	if err := unix.Fstat(int(directory.Fd()), &info); err != nil {
		return &os.PathError{Op: "stat", Path: shown(directory.Name()), Err: err}
	}
	if stat := statOf(&info); c.Previous.Index[stat.Inode].Stat != stat {
		return errChanged
	}
	return nil
}
