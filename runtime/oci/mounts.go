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
	"sandbox.internal/runtime/oci/internal/sourcemounts"
)

// paths are those by which the keeper and the runtime reach what a container is made of.
type paths struct {
	mounts []bundle.Mount
	layers []string // of its root file system, lowest first
	writes string   // the directory for its writes: upper, work and etc
	sys    string   // see [bundle.Input]
	keeper int      // the process in whose mount namespace they are; 0 when all are the host's paths
}

// attachSources sets paths. A container with a user namespace gets everything through mounts that
// show the files as those of its users. Where a file system cannot do that, the container gets no
// user namespace, unless it must have one.
func (s *start) attachSources() error {
	err := s.attachSourcesOnce()
	var fixed *sourcemounts.FixedOwnersError
	if !errors.As(err, &fixed) {
		return err
	}
	if err := s.dropUserNamespace(fixed); err != nil {
		return err
	}
	return s.attachSourcesOnce()
}

func (s *start) attachSourcesOnce() error {
	layers, err := s.layers()
	if err != nil {
		return err
	}
	s.paths = paths{layers: layers, writes: s.container.Directory.Disk()}
	open := s.volumes.Open
	if s.repeated {
		open = s.volumes.OpenAgain
	}
	set := s.sources.NewSet(s.container.ID, s.ids.Namespace)
	defer set.Close()
	for i, m := range s.spec.Mounts {
		mount := bundle.Mount{Target: m.Target, ReadOnly: m.ReadOnly || m.Directory != "", FollowLinks: m.Directory != ""}
		var err error
		switch {
		case m.Directory != "" && s.ids.First == 0:
			mount.Source = s.layout.DirectoryData(m.Directory)
		case m.Volume != "" && m.SubPath == "" && s.ids.First == 0:
			mount.Source = s.layout.VolumeData(m.Volume)
		default:
			mount.Source, err = set.Add(strconv.Itoa(i), func() (*os.File, error) { return open(m) }, unix.AT_RECURSIVE, 0)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		s.paths.mounts = append(s.paths.mounts, mount)
	}
	if err := s.addDisk(set); err != nil {
		return err
	}
	if s.ids.First != 0 {
		if err := s.addImage(set); err != nil {
			return err
		}
		s.addSys(set)
	}
	s.paths.keeper, err = set.Attach()
	return err
}

// addDisk adds the directory for the container's writes, if the host's path of that will not do.
func (s *start) addDisk(set *sourcemounts.Set) (err error) {
	switch bounded := s.container.Disk(); {
	case bounded != nil:
		tree, err := bounded.Mount()
		if err != nil {
			return err
		}
		s.paths.writes, err = set.AddMount("disk", tree, 0, 0)
		return err
	case s.ids.First != 0:
		s.paths.writes, err = set.Add("disk", opener(s.container.Directory.Disk()), 0, 0)
	}
	return err
}

// addImage adds the layers of the container's image, and of the snapshots that it lies on.
func (s *start) addImage(set *sourcemounts.Set) error {
	images, err := set.Add("images", opener(s.imagesIn), 0, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	for i, layer := range s.paths.layers {
		below, err := filepath.Rel(s.imagesIn, layer)
		if err != nil {
			return err
		}
		s.paths.layers[i] = filepath.Join(images, below)
	}
	return nil
}

// addSys adds a sysfs, which in a user namespace only the owner of the network can mount.
func (s *start) addSys(set *sourcemounts.Set) {
	network := func() error { return sourcemounts.EnterNetwork(s.netNS) }
	if s.netNS == "" && s.spec.Network == engine.NetworkNone {
		// The runtime makes the container's. Any new one looks the same.
		network = func() error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) }
	}
	s.paths.sys = set.AddSys(network)
}

// opener opens a directory of ours.
func opener(path string) func() (*os.File, error) {
	return func() (*os.File, error) {
		return os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
}
