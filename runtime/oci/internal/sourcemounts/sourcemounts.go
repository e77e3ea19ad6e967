// Package sourcemounts makes visible to the OCI runtime, in the keeper's mount namespace, what a
// container is made of.
//
// The OCI runtime follows the paths of mounts by itself, later, in the keeper's mount namespace.
// Both are dangerous for paths that a container can write to: it could put a symbolic link there in
// between. And a mount that the host got after the keeper was started is not seen there at all. So
// the service opens the source of a mount, without following anything where a container can write,
// and moves a mount of it to a path of its own in the keeper's namespace, which the runtime is
// given instead. The path lies in a small file system that exists only there: if the keeper is
// replaced in between, the path does not exist and the start fails.
package sourcemounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/thread"
)

const tmpfsOptions = "size=64k,nr_inodes=1k,mode=0711"

// Mounter attaches mounts in the keeper's mount namespace.
type Mounter struct {
	layout layout.Layout
	keeper *keeper.Client
	log    zerolog.Logger

	mu sync.Mutex
	// releasing has what the end of a Releasing closes, by containers.
	releasing map[string]chan struct{}
}

// New returns a Mounter of an Engine's keeper.
func New(l layout.Layout, k *keeper.Client, log zerolog.Logger) *Mounter {
	return &Mounter{layout: l, keeper: k, log: log, releasing: map[string]chan struct{}{}}
}

// Set has the mounts of what one container is made of. They are below a directory that is named by
// the container's id, and so need no record.
type Set struct {
	mounter   *Mounter
	id        string // of the container
	directory string
	users     *os.File // the user namespace that has the ids of what is attached; nil for the host's
	names     []string
	trees     []*os.File // detached mounts, of the same number
	sys       string     // path of a sysfs to make; empty for none
	// network has this thread enter the network that it shows.
	network func() error
}

// NewSet returns the Set of a container, without mounts. The files are shown as those of users,
// unless that is nil. The caller calls Close.
func (m *Mounter) NewSet(id string, users *os.File) *Set {
	return &Set{mounter: m, id: id, directory: m.layout.Mounts(id), users: users}
}

// FixedOwnersError is the error of a source whose files cannot be shown as those of a user
// namespace.
type FixedOwnersError struct {
	path string
	err  error
}

// Error implements error.
func (f *FixedOwnersError) Error() string {
	kind := "the file system"
	var info unix.Statfs_t
	if err := unix.Statfs(f.path, &info); err == nil {
		kind = fmt.Sprintf("the file system (%#x in statfs)", info.Type)
	}
	return fmt.Sprintf("%s: %s, or how it is mounted, cannot show other owners in a user namespace: %v", f.path, kind, f.err)
}

// Unwrap returns the kernel's error.
func (f *FixedOwnersError) Unwrap() error { return f.err }

// Add clones the mount of what open opens, and returns the path that it will have. flags are 0 or
// AT_RECURSIVE; attributes are set together with the users. The error is a [*FixedOwnersError] when
// the owners cannot be shown as those of users.
func (m *Set) Add(name string, open func() (*os.File, error), flags uint, attributes uint64) (path string, err error) {
	source, err := open()
	if err != nil {
		return "", err
	}
	defer func() { _ = source.Close() }()
	tree, err := cloneMount(source, flags)
	if err != nil {
		return "", err
	}
	return m.AddMount(name, tree, flags, attributes)
}

// AddMount is Add for a mount that is attached nowhere yet, which the Set closes.
func (m *Set) AddMount(name string, tree *os.File, flags uint, attributes uint64) (path string, err error) {
	m.names, m.trees = append(m.names, name), append(m.trees, tree)
	// A clone of a shared mount is its peer: its removal would unmount what is mounted below on the
	// host, too.
	private := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &private); err != nil {
		return "", fmt.Errorf("make %s private: %w", tree.Name(), err)
	}
	if m.users != nil {
		attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | attributes, Userns_fd: uint64(m.users.Fd())}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|flags, &attributes); err != nil {
			if err == unix.EINVAL || err == unix.EPERM { // which its file system decides, and a mount that translates already
				return "", &FixedOwnersError{path: tree.Name(), err: err}
			}
			return "", fmt.Errorf("map the owners of %s: %w", tree.Name(), err)
		}
	}
	return filepath.Join(m.directory, name), nil
}

// AddSys adds a sysfs, and returns the path that it will have. network has the thread enter the
// network that the sysfs shows.
func (m *Set) AddSys(network func() error) (path string) {
	m.sys, m.network = filepath.Join(m.directory, "sys"), network
	return m.sys
}

// Close closes the mounts. Those that were attached stay.
func (m *Set) Close() {
	for _, tree := range m.trees {
		_ = tree.Close()
	}
}

// Attach puts every mount at its path, and returns the keeper's process; 0 when there is no mount.
// [Mounter.Release] takes it back, also after an error.
func (m *Set) Attach() (keeper int, err error) {
	if len(m.trees) == 0 {
		return 0, nil
	}
	m.mounter.await(m.id)
	if err := os.Mkdir(m.directory, layout.DirectoryMode); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	if err := os.Chmod(m.directory, layout.ThroughMode); err != nil {
		return 0, err
	}
	return m.mounter.inKeeper(func() error {
		if err := unix.Mount("sandbox", m.directory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, tmpfsOptions); err != nil {
			return fmt.Errorf("mount a file system for the sources of mounts: %w", err)
		}
		for i, tree := range m.trees {
			if err := attach(tree, filepath.Join(m.directory, m.names[i])); err != nil {
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

// EnterNetwork moves this thread to a network namespace; empty is the one that it is in.
func EnterNetwork(path string) error {
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

// cloneMount returns a mount of the source that is nowhere yet. The kernel removes it when the file
// is closed.
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
		err = unix.Mkdir(path, layout.DirectoryMode)
	} else {
		err = unix.Mknod(path, unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Releasing returns a Release that the caller has to make, once, whenever it likes: Attach waits
// for it, so that it does not take back what the next start of the container has attached.
func (m *Mounter) Releasing(id string) (release func()) {
	done := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releasing[id] = done
	return func() {
		m.Release(id)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.releasing[id] == done {
			delete(m.releasing, id)
		}
		close(done)
	}
}

// await waits for the end of a Releasing.
func (m *Mounter) await(id string) {
	m.mu.Lock()
	done := m.releasing[id]
	m.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Release takes back what was attached for a container; it succeeds when nothing was.
func (m *Mounter) Release(id string) {
	directory := m.layout.Mounts(id)
	if _, err := os.Lstat(directory); errors.Is(err, os.ErrNotExist) {
		return
	}
	_, err := m.inKeeper(func() error {
		for { // more than one when a start was cut off
			// What an earlier version has attached is not private. That nothing is mounted there is
			// found out below.
			if err := unix.Mount("", directory, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil && err != unix.EINVAL && err != unix.ENOENT {
				return err
			}
			if err := unix.Unmount(directory, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				if err == unix.EINVAL || err == unix.ENOENT { // nothing is mounted there
					return nil
				}
				return err
			}
		}
	})
	if err == nil {
		err = os.Remove(directory)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Warn().Err(err).Str("container_id", id).Msg("cannot unmount source mounts of container; retried at service start")
	}
}

// inKeeper calls do on a thread that is in the keeper's mount namespace, and returns the keeper's
// process. do must not start goroutines.
func (m *Mounter) inKeeper(do func() error) (pid int, err error) {
	thread.Run(func() {
		if err = os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS)); err != nil {
			return
		}
		if pid, err = m.keeper.Enter(); err == nil {
			err = do()
		}
	})
	return pid, err
}
