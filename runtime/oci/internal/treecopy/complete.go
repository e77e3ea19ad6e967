package treecopy

import (
	"context"
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// later is something that does not need the source. It takes longer than the comparison with the
// source: each name is an entry in the journal of a file system.
type later struct {
	kind     laterKind
	from, to string // paths
}

// directoryTimes are the times of a directory, which has all its entries then.
type directoryTimes struct {
	directory string
	times     [2]unix.Timespec
}

type laterKind int

const (
	moveStaged   laterKind = iota // a file of Staging into the copy
	linkPrevious                  // a file of Previous into the copy
	linkName                      // another name for a file of the copy
)

// Complete adds to the copy what Compare has left, in a directory that no one else has changed
// since. Processes may change the source meanwhile.
func (c *Copy) Complete(ctx context.Context, to *os.File, result *Result) error {
	for _, l := range c.later {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.complete(ctx, l, to, result); err != nil {
			return &os.LinkError{Op: "complete", Old: shown(l.from), New: shown(l.to), Err: err}
		}
	}
	for _, t := range c.times {
		if err := unix.UtimesNanoAt(int(to.Fd()), path.Join(".", t.directory), t.times[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "set the times of", Path: shown(t.directory), Err: err}
		}
	}
	c.later, c.times = nil, nil
	return nil
}

// complete does one thing. Paths in the copies lead through directories alone.
func (c *Copy) complete(ctx context.Context, l later, to *os.File, result *Result) error {
	target := int(to.Fd())
	switch l.kind {
	case moveStaged:
		return unix.Renameat(int(c.Staging.Fd()), l.from, target, l.to)
	case linkName:
		return unix.Linkat(target, l.from, target, l.to, 0)
	}
	err := unix.Linkat(int(c.Previous.Root.Fd()), l.from, target, l.to, 0)
	if err == nil || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	// Such as EMLINK: the file has as many names as one can have.
	from, info, err := openRegular(c.Previous.Root, l.from)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(from) }()
	result.Exclusive += Blocks(&info)
	if err := c.exceeds(0, result.Exclusive, 0); err != nil {
		return err
	}
	_, err = c.file(ctx, from, &info, to, l.to)
	return err
}
