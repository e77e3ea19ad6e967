package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/remove"
)

// MoveEntry is one thing to move or rename.
type MoveEntry struct {
	Src  string
	Dest string
}

// Move moves files, links and directories, in order. The directory of a target must exist
// (KindNotFound) and nothing may be at the target, not even an empty directory (KindConflict). A
// later entry sees what the earlier ones do, so a swap over a third name works. Errors name the
// entry, counted from 1; when an entry fails after the check, those before it stay moved.
//
// Between file systems it copies, and then removes the source: content, mode, owner, times and
// links are kept, hard links among what one entry moves included; extended attributes are not. The
// target appears complete or not at all.
func (f *Files) Move(ctx context.Context, entries []MoveEntry) error {
	plan := make(movePlan, 0, len(entries))
	for i, entry := range entries {
		if err := ctx.Err(); err != nil { // each is compared with all before it
			return fmt.Errorf("entry %d of %d: stopped: %w", i+1, len(entries), err)
		}
		step, err := f.planMove(plan, entry)
		if err != nil {
			return fmt.Errorf("entry %d of %d: %w", i+1, len(entries), err)
		}
		plan = append(plan, step)
	}
	for i, step := range plan {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("entry %d of %d: %w", i+1, len(entries), err)
		}
	}
	return nil
}

// movePlan is the moves that come before the one being checked.
type movePlan []move

type move struct {
	src, dest string
	overwrite bool // what is at dest is replaced as rename(2) does
}

// rename gives what is at a path the name of the target.
func (m move) rename(from string) error {
	if m.overwrite {
		if err := unix.Rename(from, m.dest); err != nil { // os.Rename refuses every directory
			return &os.LinkError{Op: "rename", Old: from, New: m.dest, Err: err}
		}
		return nil
	}
	return renameNoReplace(from, m.dest)
}

func (f *Files) planMove(plan movePlan, entry MoveEntry) (move, error) {
	src, err := f.resolve(entry.Src)
	if err != nil {
		return move{}, fmt.Errorf("src: %w", err)
	}
	dest, err := f.resolve(entry.Dest)
	if err != nil {
		return move{}, fmt.Errorf("dest: %w", err)
	}
	if _, err := plan.stat(src, os.Lstat); err != nil {
		return move{}, classify(src, err)
	}
	if _, err := plan.stat(dest, os.Lstat); err == nil {
		return move{}, conflict(dest, "exists already and is never overwritten")
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return move{}, classify(dest, err)
	}
	if _, inside := below(dest, src); inside {
		return move{}, invalid(dest, "is inside %s, which cannot be moved into itself", src)
	}
	directory := filepath.Dir(dest)
	if info, err := plan.stat(directory, os.Stat); err != nil {
		return move{}, classify(directory, err)
	} else if !info.IsDir() {
		return move{}, invalid(directory, "is not a directory, so it cannot hold %s", filepath.Base(dest))
	}
	return move{src: src, dest: dest}, nil
}

// stat looks at what will be at path once the plan has run: it follows the path back to where its
// content is now.
func (plan movePlan) stat(path string, stat func(string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	for i := len(plan) - 1; i >= 0; i-- {
		if rest, ok := below(path, plan[i].dest); ok {
			path = plan[i].src + rest
		} else if _, ok := below(path, plan[i].src); ok {
			return nil, fs.ErrNotExist
		}
	}
	return stat(path)
}

// below reports whether path is root or inside it, and what of path comes after root.
func below(path, root string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/' || root == "/")
}

// MoveOver moves a file, link or directory to a path as rename(2) does: a file or link there is
// replaced, and a directory if it is empty and a directory comes. Missing parents of the path are
// made for an owner. Otherwise it works as Move does for one entry.
func (f *Files) MoveOver(ctx context.Context, src, dest string, owner Owner) error {
	m, err := f.overwritingMove(src, dest)
	if err != nil {
		return err
	}
	if _, err := checkDirectory(filepath.Dir(m.dest)); err != nil {
		return err
	}
	made, err := makeDirectory(filepath.Dir(m.dest), &owner)
	if err != nil {
		return err
	}
	if err := m.run(ctx); err != nil {
		removeMade(made)
		return err
	}
	return nil
}

func (f *Files) overwritingMove(src, dest string) (move, error) {
	from, err := f.resolve(src)
	if err != nil {
		return move{}, fmt.Errorf("source: %w", err)
	}
	to, err := f.resolve(dest)
	if err != nil {
		return move{}, fmt.Errorf("destination: %w", err)
	}
	if _, err := os.Lstat(from); err != nil {
		return move{}, classify(from, err)
	}
	if _, inside := below(to, from); inside && to != from {
		return move{}, invalid(to, "is inside %s, which cannot be moved into itself", from)
	}
	return move{src: from, dest: to, overwrite: true}, nil
}

func (m move) run(ctx context.Context) error {
	err := m.rename(m.src)
	switch {
	case errors.Is(err, unix.EXDEV):
		// Other reasons than two file systems exist: overlayfs says so for a directory of the
		// image's layers.
		return m.copyAndRemove(ctx)
	case errors.Is(err, unix.EEXIST) && !m.overwrite:
		return conflict(m.dest, "exists already and is never overwritten")
	case m.overwrite && err != nil:
		return m.refused(err)
	case errors.Is(err, unix.EINVAL):
		return invalid(m.dest, "is inside %s, which cannot be moved into itself", m.src)
	}
	return classify(m.src, err)
}

// refused gives the error of a rename that would have replaced what is at the target its kind.
func (m move) refused(err error) error {
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return conflict(m.dest, "is a directory with files in it, which is not replaced")
	case errors.Is(err, unix.EISDIR):
		return conflict(m.dest, "is a directory, which only a directory replaces")
	case errors.Is(err, unix.ENOTDIR):
		return conflict(m.dest, "is not a directory, so a directory does not replace it")
	case errors.Is(err, unix.EINVAL):
		return invalid(m.dest, "is inside %s, which cannot be moved into itself", m.src)
	}
	return classify(m.src, err)
}

// renameNoReplace renames unless something is at the target. Where the file system cannot do this
// in one step (some network and user-space ones), a target that appears between the look and the
// rename is lost.
func renameNoReplace(src, dest string) error {
	err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dest, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	if _, err := os.Lstat(dest); err == nil {
		return unix.EEXIST
	}
	return os.Rename(src, dest)
}

// copyAndRemove moves by copying to a temporary name beside the target, which then gets its real
// name in one step.
func (m move) copyAndRemove(ctx context.Context) (err error) {
	directory := filepath.Dir(m.dest)
	temp, err := os.MkdirTemp(directory, TempPrefix+"move-*")
	if err != nil {
		return classify(m.dest, err)
	}
	defer func() {
		if rmErr := remove.All(context.WithoutCancel(ctx), temp); err == nil {
			err = classify(temp, rmErr)
		}
	}()
	tree, copied := treeCopy{links: filepath.Join(temp, "links")}, filepath.Join(temp, "copy")
	if err := os.Mkdir(tree.links, 0o700); err != nil {
		return classify(m.dest, err)
	}
	if err := tree.copy(ctx, m.src, copied); err != nil {
		return classify(m.dest, err)
	}
	if err := m.rename(copied); err != nil {
		if errors.Is(err, unix.EEXIST) && !m.overwrite {
			return conflict(m.dest, "exists already and is never overwritten")
		}
		return classify(m.dest, err)
	}
	if err := syncDirectory(directory); err != nil {
		return classify(m.dest, err)
	}
	return classify(m.src, remove.All(context.WithoutCancel(ctx), m.src)) // everything is at the target
}
