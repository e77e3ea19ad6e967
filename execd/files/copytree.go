package files

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// copyTree copies a file or a directory with all that is in it to dest, where nothing is yet, and flushes it to disk.
func copyTree(ctx context.Context, src, dest string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: src, Err: err}
	}
	if err := checkCopyable(src, &st); err != nil {
		return err
	}
	var err error
	switch typeOf(st.Mode) {
	case TypeFile:
		err = copyFile(src, dest)
	case TypeDirectory:
		err = copyDirectory(ctx, src, dest)
	case TypeSymlink:
		err = copyLink(src, dest)
	case TypeOther:
		err = unix.Mknod(dest, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	if err := copyAttributes(dest, &st); err != nil {
		return err
	}
	if typeOf(st.Mode) == TypeDirectory {
		return syncDirectory(dest)
	}
	return nil
}

// checkCopyable refuses what the kernel makes up: it cannot be removed from where it is, has no true size, and some of
// it has no end.
func checkCopyable(src string, st *unix.Stat_t) error {
	if kind := typeOf(st.Mode); kind != TypeFile && kind != TypeDirectory {
		return nil
	}
	var system unix.Statfs_t
	if err := unix.Statfs(src, &system); err != nil {
		return &os.PathError{Op: "statfs", Path: src, Err: err}
	}
	switch system.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC:
		return invalid(src, "is made up by the kernel and cannot be moved")
	}
	return nil
}

func copyFile(src, dest string) error {
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dest, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Sync()
}

func copyDirectory(ctx context.Context, src, dest string) error {
	if err := os.Mkdir(dest, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(src)
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close() // only read from; a deep tree needs no file per level
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := copyTree(ctx, filepath.Join(src, name), filepath.Join(dest, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyLink(src, dest string) error {
	target, err := os.Readlink(src)
	if err != nil {
		return err
	}
	return os.Symlink(target, dest)
}

// copyAttributes comes last for each entry: the owner change drops set-user-ID bits, filling a directory changes its
// time, and its mode may forbid filling it.
func copyAttributes(dest string, st *unix.Stat_t) error {
	if err := unix.Lchown(dest, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(dest, st.Mode&0o7777); err != nil {
			return err
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dest, times, unix.AT_SYMLINK_NOFOLLOW)
}

// syncDirectory makes the names in a directory survive a power cut.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
