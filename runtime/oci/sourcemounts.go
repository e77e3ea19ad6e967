package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

const sourceMountsOptions = "size=64k,nr_inodes=1k,mode=0711"

// sourceMounts are the mounts of what one container is made of, in the keeper's mount namespace. They are below a folder that is named by the
// container's id, and so needs no record.
type sourceMounts struct {
	folder string
	users  *os.File // the user namespace that has the ids of what is attached; nil for the host's
	names  []string
	trees  []*os.File // detached mounts, of the same number
	sys    string     // path of a sysfs to make; empty for none
	// network has this thread enter the network that it shows.
	network func() error
}

// add clones the mount of what open opens, and returns the path that it will have. flags are 0 or AT_RECURSIVE; attributes are set with the
// users.
func (m *sourceMounts) add(name string, open func() (*os.File, error), flags uint, attributes uint64) (path string, err error) {
	source, err := open()
	if err != nil {
		return "", err
	}
	defer func() { _ = source.Close() }()
	tree, err := cloneMount(source, flags)
	if err != nil {
		return "", err
	}
	return m.keep(name, tree, flags, attributes)
}

// keep takes a mount that is nowhere yet, and returns the path that it will have.
func (m *sourceMounts) keep(name string, tree *os.File, flags uint, attributes uint64) (path string, err error) {
	m.names, m.trees = append(m.names, name), append(m.trees, tree)
	// A clone of a shared mount is its peer: its removal would unmount what is mounted below on the host, too.
	private := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &private); err != nil {
		return "", fmt.Errorf("make %s private: %w", tree.Name(), err)
	}
	if m.users != nil {
		attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | attributes, Userns_fd: uint64(m.users.Fd())}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|flags, &attributes); err != nil {
			if err == unix.EINVAL || err == unix.EPERM { // which its file system decides, and a mount that translates already
				return "", &fixedIDs{path: tree.Name(), err: err}
			}
			return "", fmt.Errorf("map the owners of %s: %w", tree.Name(), err)
		}
	}
	return filepath.Join(m.folder, name), nil
}

func (m *sourceMounts) addSys(network func() error) (path string) {
	m.sys, m.network = filepath.Join(m.folder, "sys"), network
	return m.sys
}

func (m *sourceMounts) close() {
	for _, tree := range m.trees {
		_ = tree.Close()
	}
}

// attach puts everything at its path, and returns the keeper's process; 0 when there is nothing. It is taken back by [Engine.releaseSources],
// also after an error.
func (m *sourceMounts) attach(e *Engine) (keeper int, err error) {
	if len(m.trees) == 0 {
		return 0, nil
	}
	if err := os.Mkdir(m.folder, folderMode); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	if err := os.Chmod(m.folder, throughMode); err != nil {
		return 0, err
	}
	return e.inKeeper(func() error {
		if err := unix.Mount("sandbox", m.folder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, sourceMountsOptions); err != nil {
			return fmt.Errorf("mount a file system for the sources of mounts: %w", err)
		}
		for i, tree := range m.trees {
			if err := attach(tree, filepath.Join(m.folder, m.names[i])); err != nil {
				return fmt.Errorf("attach %s: %w", tree.Name(), err)
			}
		}
		if m.sys == "" {
			return nil
		}
		if err := m.network(); err != nil { // for good: the thread ends
			return err
		}
		tree, err := newSysfs()
		if err != nil {
			return err
		}
		defer func() { _ = tree.Close() }()
		return attach(tree, m.sys)
	})
}

// enterNetwork moves this thread to a network namespace; empty is the one that it is in.
func enterNetwork(path string) error {
	if path == "" {
		return nil
	}
	namespace, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	return nil
}

// newSysfs returns a sysfs that shows the interfaces of this thread's network.
func newSysfs() (*os.File, error) {
	context, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("sysfs: fsopen: %w", err)
	}
	defer func() { _ = unix.Close(context) }()
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("sysfs: create: %w", err)
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("sysfs: fsmount: %w", err)
	}
	return os.NewFile(uintptr(mount), "sysfs"), nil
}

// cloneMount returns a mount of the source that is nowhere yet. The kernel removes it when the file is closed.
func cloneMount(source *os.File, flags uint) (*os.File, error) {
	fd, err := unix.OpenTree(int(source.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|flags)
	if err != nil {
		return nil, fmt.Errorf("clone the mount of %s: %w", source.Name(), err)
	}
	return os.NewFile(uintptr(fd), source.Name()), nil
}

// attach puts a detached mount at a new path.
func attach(tree *os.File, path string) error {
	var info unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &info); err != nil {
		return err
	}
	var err error
	if info.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdir(path, folderMode)
	} else {
		err = unix.Mknod(path, unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// releaseSources takes back what was attached for a container; what is gone is no error.
func (e *Engine) releaseSources(id string) {
	folder := e.layout.mounts(id)
	if _, err := os.Lstat(folder); errors.Is(err, os.ErrNotExist) {
		return
	}
	_, err := e.inKeeper(func() error {
		for { // more than one when a start was cut off
			// What an earlier version has attached is not private. That nothing is mounted there is found out below.
			if err := unix.Mount("", folder, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil && err != unix.EINVAL && err != unix.ENOENT {
				return err
			}
			if err := unix.Unmount(folder, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				if err == unix.EINVAL || err == unix.ENOENT { // nothing is mounted there
					return nil
				}
				return err
			}
		}
	})
	if err == nil {
		err = os.Remove(folder)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.Warn().Err(err).Str("container_id", id).Msg("what its mounts were made of stays in the keeper's mount namespace; the next start of the service tries again")
	}
}

// inKeeper calls do on a thread that is in the keeper's mount namespace, and returns the keeper's process. do must not start goroutines.
func (e *Engine) inKeeper(do func() error) (pid int, err error) {
	thread.Run(func() {
		if err = os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS)); err != nil {
			return
		}
		if pid, err = e.keeper.Enter(); err == nil {
			err = do()
		}
	})
	return pid, err
}
