package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/keeper"
)

// The OCI runtime follows the paths of mounts by itself, later, in the keeper's mount namespace. Both are dangerous for paths that a
// container can write to: it could put a symbolic link there meanwhile. And a mount that the host got after the keeper was started is not
// seen there at all. So what a mount's source is, is opened here, without following anything where a container can write, and a mount of
// it is moved to a path of our own in the keeper's namespace, which the runtime is given instead. The path lies in a small file system
// that exists only there: if the keeper is replaced meanwhile, the path does not exist and the start fails.

// openSource opens what is to be mounted, as a path only. It never leaves a volume.
func (e *Engine) openSource(m engine.Mount) (*os.File, error) {
	switch {
	case m.HostPath != "":
		file, err := os.OpenFile(m.HostPath, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: host path: %w", engine.ErrInvalid, err)
		}
		return file, nil
	case m.Folder != "":
		file, err := os.OpenFile(e.layout.folderData(m.Folder), unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: there is no folder %s", engine.ErrInvalid, m.Folder)
		}
		return file, nil
	}
	volume, err := os.OpenFile(e.layout.volumeData(m.Volume), unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: volume %s does not exist", engine.ErrInvalid, m.Volume)
	}
	if err != nil || m.SubPath == "" {
		return volume, err
	}
	defer func() { _ = volume.Close() }()
	return openBeneath(volume, m.SubPath, m.Volume)
}

// openBeneath opens a folder of a volume. Symbolic links are followed as long as they stay inside.
func openBeneath(volume *os.File, sub, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(volume.Fd()), sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case err == unix.EXDEV:
		return nil, fmt.Errorf("%w: sub path %q leaves volume %s", engine.ErrInvalid, sub, name)
	case err == unix.ENOTDIR:
		return nil, fmt.Errorf("%w: sub path %q of volume %s is not a folder", engine.ErrInvalid, sub, name)
	case err == unix.ENOENT:
		return nil, fmt.Errorf("%w: volume %s has no folder %q", engine.ErrInvalid, name, sub)
	case err != nil:
		return nil, fmt.Errorf("%w: sub path %q of volume %s: %w", engine.ErrInvalid, sub, name, err)
	}
	return os.NewFile(uintptr(fd), sub), nil
}

// sources are the paths by which the keeper and the runtime reach what a container is made of.
type sources struct {
	mounts []bundle.Mount
	layers []string // of its root file system, lowest first
	writes string   // the folder for what it writes: upper, work and etc
	sys    string   // see [bundle.Input]
	keeper int      // the process in whose mount namespace they are; 0 when all are the host's paths
}

// makeSources makes them. A container with a user namespace gets everything through mounts that show the files as those of its users, and
// only where it can, unless it must have one.
func (s *startOperation) makeSources() error {
	err := s.attachSources()
	var fixed *fixedIDs
	if !errors.As(err, &fixed) {
		return err
	}
	if err := s.dropUserNamespace(fixed); err != nil {
		return err
	}
	return s.attachSources()
}

func (s *startOperation) attachSources() error {
	e, c := s.engine, s.container
	layers, err := s.layers()
	if err != nil {
		return err
	}
	s.sources = sources{layers: layers, writes: c.at.disk()}
	mounts := sourceMounts{folder: e.layout.mounts(c.id), users: s.users.Namespace}
	defer mounts.close()
	for i, m := range s.spec.Mounts {
		mount := bundle.Mount{Target: m.Target, ReadOnly: m.ReadOnly || m.Folder != "", FollowLinks: m.Folder != ""}
		var err error
		switch {
		case m.Folder != "" && s.users.First == 0:
			mount.Source = e.layout.folderData(m.Folder)
		case m.Volume != "" && m.SubPath == "" && s.users.First == 0:
			mount.Source = e.layout.volumeData(m.Volume)
		default:
			mount.Source, err = mounts.add(strconv.Itoa(i), func() (*os.File, error) { return e.openSource(m) }, unix.AT_RECURSIVE, 0)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		s.sources.mounts = append(s.sources.mounts, mount)
	}
	if err := s.addDisk(&mounts); err != nil {
		return err
	}
	if s.users.First != 0 {
		if err := s.addOwn(&mounts); err != nil {
			return err
		}
	}
	s.sources.keeper, err = mounts.attach(e)
	return err
}

// addDisk adds what the container writes to, if the host's path of that will not do.
func (s *startOperation) addDisk(mounts *sourceMounts) (err error) {
	switch c := s.container; {
	case c.disk != nil:
		tree, err := c.disk.Mount()
		if err != nil {
			return err
		}
		s.sources.writes, err = mounts.keep("disk", tree, 0, 0)
		return err
	case s.users.First != 0:
		s.sources.writes, err = mounts.add("disk", opener(c.at.disk()), 0, 0)
	}
	return err
}

// opener opens a folder of ours.
func opener(path string) func() (*os.File, error) {
	return func() (*os.File, error) {
		return os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
}

// explainLaunch says which of the contract's errors a failed launch is.
func (s *startOperation) explainLaunch(err error) error {
	if had := s.sources.keeper; had != 0 {
		// The sources are gone with the keeper that had them.
		if now, unknown := keeper.ListenerPID(s.engine.layout.run); unknown != nil || now != had {
			return fmt.Errorf("%w: the keeper was replaced during the start: %v", engine.ErrUnavailable, err) //nolint:errorlint // it is not the cause
		}
	}
	var refused *keeper.RuntimeError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", engine.ErrInvalid, refused)
	}
	return err
}

// addOwn adds the layers of the container's image, and a sysfs, which in a user namespace nothing but the owner of the network can mount.
func (s *startOperation) addOwn(mounts *sourceMounts) error {
	images, err := mounts.add("images", opener(s.imagesIn), 0, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	for i, layer := range s.sources.layers {
		below, err := filepath.Rel(s.imagesIn, layer)
		if err != nil {
			return err
		}
		s.sources.layers[i] = filepath.Join(images, below)
	}
	network := func() error { return enterNetwork(s.netNS) }
	if s.netNS == "" && s.spec.Network == engine.NetworkNone {
		// The runtime makes the container's. Any new one looks the same.
		network = func() error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) }
	}
	s.sources.sys = mounts.addSys(network)
	return nil
}
