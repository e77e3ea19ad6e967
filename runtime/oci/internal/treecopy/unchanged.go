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
	var info unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &info); err != nil {
		return false, &os.PathError{Op: "stat", Path: root.Name(), Err: err}
	}
	err = c.same(ctx, root, &info, 0)
	if errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// same returns errChanged where a directory, or what is in it, is not as Previous has it.
func (c *Copy) same(ctx context.Context, directory *os.File, info *unix.Stat_t, depth int) error {
	stat := statOf(info)
	if c.Previous.Index[stat.Inode].Stat != stat || depth > maxDepth {
		return errChanged
	}
	return entries(ctx, directory, func(entry string) error {
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
		return c.same(ctx, below, &info, depth+1)
	})
}
