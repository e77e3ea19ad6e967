package keeper

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroup2OfHybrid is where a host with hierarchies of version 1 has its one of version 2.
const cgroup2OfHybrid = "/sys/fs/cgroup/unified"

// separateMounts gives this thread a mount namespace of its own, which gets what the host mounts,
// while the host gets nothing from it.
func separateMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	return nil
}

// hideUnified unmounts the hierarchy of version 2 of a hybrid host in this mount namespace, because
// crun refuses hybrid hosts. It returns a descriptor by which its directories are reached still, -1
// on other hosts.
func hideUnified() (fd int, err error) {
	var root, unified unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &root) != nil || root.Type == unix.CGROUP2_SUPER_MAGIC ||
		unix.Statfs(cgroup2OfHybrid, &unified) != nil || unified.Type != unix.CGROUP2_SUPER_MAGIC {
		return -1, nil
	}
	fd, err = unix.Open(cgroup2OfHybrid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: cgroup2OfHybrid, Err: err}
	}
	if err := unix.Unmount(cgroup2OfHybrid, unix.MNT_DETACH); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "unmount", Path: cgroup2OfHybrid, Err: err}
	}
	return fd, nil
}

// cgroups reaches cgroup directories.
type cgroups struct {
	unified int // see hideUnified
}

// open opens a file of a cgroup directory, or the directory when name is empty.
func (c cgroups) open(directory, name string, flags int) (int, error) {
	path, parent := directory+"/"+name, unix.AT_FDCWD
	if below, ok := strings.CutPrefix(path, cgroup2OfHybrid+"/"); ok && c.unified >= 0 {
		path, parent = below, c.unified
		if path == "" {
			path = "."
		}
	}
	fd, err := unix.Openat(parent, path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: directory + "/" + name, Err: err}
	}
	return fd, nil
}

// write writes to a file of a cgroup directory.
func (c cgroups) write(directory, name, text string) error {
	fd, err := c.open(directory, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write " + text, Path: directory + "/" + name, Err: err}
	}
	return nil
}

// attach moves a process.
func (c cgroups) attach(directory, pid string) error { return c.write(directory, "cgroup.procs", pid) }

// enter moves this thread, where the hierarchy can (version 1). Otherwise it returns a descriptor
// of the directory, for a child to be started in; the caller closes it.
func (c cgroups) enter(directory string) (fd int, err error) {
	err = c.write(directory, "tasks", "0")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return c.open(directory, "", unix.O_PATH|unix.O_DIRECTORY)
	}
	return -1, err
}
