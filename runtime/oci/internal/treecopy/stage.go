package treecopy

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// Stage copies regular files to Staging while the source may be changing: those that neither
// Staging nor Previous has as they are. Files that have changed too short a time ago, or while they
// were copied, are left. Another call goes on with these.
func (c *Copy) Stage(ctx context.Context) (Left, error) {
	if err := c.prepare(); err != nil || c.untimed {
		return Left{}, err
	}
	root, err := reopen(c.From)
	if err != nil {
		return Left{}, err
	}
	defer func() { _ = root.Close() }()
	s := &stage{Copy: c, ctx: ctx, seen: map[uint64]bool{}}
	if err := s.directory(root, 0); err != nil && !errors.Is(err, errEnough) {
		return s.left, err
	}
	return s.left, nil
}

// errEnough ends a stage that has copied as much as there may be.
var errEnough = errors.New("enough was copied")

// stage is one call of Stage.
type stage struct {
	*Copy
	ctx   context.Context //nolint:containedctx // of the call
	left  Left
	seen  map[uint64]bool // files with several names
	files int
	bytes int64
}

// directory stages what is in a directory. What is gone meanwhile, or cannot be read, is for
// Compare to report.
func (s *stage) directory(directory *os.File, depth int) error {
	if depth > maxDepth {
		return nil
	}
	err := entries(s.ctx, directory, func(entry string) error {
		var info unix.Stat_t
		if unix.Fstatat(int(directory.Fd()), entry, &info, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return nil
		}
		known, err := s.count(&info)
		if err != nil || known {
			return err
		}
		switch info.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			below, err := openDirectory(directory, entry)
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			defer func() { _ = below.Close() }()
			return s.directory(below, depth+1)
		case unix.S_IFREG:
			return s.regular(directory, entry, &info)
		}
		return nil
	})
	if err != nil && ended(s.ctx, err) {
		return err
	}
	return nil
}

// count counts a file, and reports whether it was counted by another name.
func (s *stage) count(info *unix.Stat_t) (known bool, err error) {
	if info.Nlink > 1 && info.Mode&unix.S_IFMT != unix.S_IFDIR {
		if s.seen[info.Ino] {
			return true, nil
		}
		s.seen[info.Ino] = true
	}
	s.files++
	return false, s.exceeds(s.files, 0, 0)
}

func (s *stage) regular(directory *os.File, entry string, info *unix.Stat_t) error {
	stat := statOf(info)
	if _, ok := s.inPrevious(stat, uint64(info.Nlink)); ok {
		return nil
	}
	s.bytes += Blocks(info)
	if err := s.exceeds(s.files, s.bytes, 0); err != nil || s.staged[stat.Inode] == stat {
		return err
	}
	if s.MaxBytes > 0 && s.stagedBytes > s.MaxBytes {
		return errEnough
	}
	if stat.settled(time.Now()) {
		done, err := s.one(directory, entry)
		if err != nil && ended(s.ctx, err) {
			return err
		}
		if done && err == nil {
			return nil
		}
	}
	s.left.Files, s.left.Bytes = s.left.Files+1, s.left.Bytes+Blocks(info)
	return nil
}

// one copies one file, and reports whether it did not change meanwhile.
func (s *stage) one(directory *os.File, entry string) (done bool, err error) {
	from, before, err := openRegular(directory, entry)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(from) }()
	stat := statOf(&before)
	if !stat.settled(time.Now()) {
		return false, nil
	}
	name := strconv.FormatUint(stat.Inode, 10)
	if _, ok := s.staged[stat.Inode]; ok {
		delete(s.staged, stat.Inode)
		if err := unix.Unlinkat(int(s.Staging.Fd()), name, 0); err != nil {
			return false, &os.PathError{Op: "remove", Path: name, Err: err}
		}
	}
	s.stagedBytes += Blocks(&before)
	written, err := s.file(s.ctx, from, &before, s.Staging, name)
	var after unix.Stat_t
	if err == nil {
		err = unix.Fstat(from, &after)
	}
	if err != nil || !written || statOf(&after) != stat {
		return false, errors.Join(err, ignoreMissing(unix.Unlinkat(int(s.Staging.Fd()), name, 0)))
	}
	s.staged[stat.Inode] = stat
	return true, nil
}

// ended reports whether an error ends the copy, and is not about a file that was changed meanwhile.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, engine.ErrNoRoom) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || isLimit(err)
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
