// Package layout has the paths of everything that the engine of package oci keeps on the disk and
// in its run directory.
package layout

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"sandbox.internal/internal/flock"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/placement"
)

const (
	// DirectoryMode is the mode of a directory that only the service enters.
	DirectoryMode = 0o700
	// ThroughMode is that of directories with what containers' users have to reach by its path.
	ThroughMode = 0o711
)

// RunDirectories has the run directories of services, unless they have other ones.
const RunDirectories = "/run/sandbox-local"

// Claims has a link for each service on the host that gives containers user namespaces, to its data
// directory; the link's name is the first of the ids that the service has.
const Claims = RunDirectories + "/users"

// Upper and Work are the two directories of an overlay, Etc that of the container's own files of
// /etc.
const (
	Upper = "upper"
	Work  = "work"
	Etc   = "etc"
)

// Layout has the directories of one Engine.
type Layout struct {
	Data string // files that outlive a reboot
	Run  string // files that do not
}

// Images has the images and their layers.
func (l Layout) Images() string { return filepath.Join(l.Data, "images") }

// Targets has the layers with what containers have mounts on. It lies among the images, because a
// container reaches all its layers by one mount.
func (l Layout) Targets() string { return filepath.Join(l.Images(), "targets") }

// Snapshots has a directory for each snapshot. It lies among the images for the same reason.
func (l Layout) Snapshots() string { return filepath.Join(l.Images(), "snapshots") }

// Volumes has a directory for each volume.
func (l Layout) Volumes() string { return filepath.Join(l.Data, "volumes") }

// Directories has the directories that were copied from images.
func (l Layout) Directories() string { return filepath.Join(l.Data, "directories") }

// Containers has a directory for each container; see [Layout.Container].
func (l Layout) Containers() string { return filepath.Join(l.Data, "containers") }

// Trash has what was removed and still takes room.
func (l Layout) Trash() string { return filepath.Join(l.Data, "trash") }

// Network has the files of the network.
func (l Layout) Network() string { return filepath.Join(l.Data, "network") }

// Archives is the file that says which archives of images were loaded.
func (l Layout) Archives() string { return filepath.Join(l.Data, "archives.json") }

// Runtime is the root directory of an OCI runtime's states; each runtime has one of its own,
// because their states have different forms.
func (l Layout) Runtime(name string) string {
	return filepath.Join(l.RunRuntimes(), filepath.Base(name))
}

// Mounts is where the sources of a container's mounts are made visible to the runtime.
func (l Layout) Mounts(id string) string { return filepath.Join(l.RunMounts(), id) }

// Root is where the root of a container with a user namespace is mounted, in the keeper's mount
// namespace: its user can enter this directory and not the data directory.
func (l Layout) Root(id string) string { return filepath.Join(l.RunRoots(), id) }

// RunRoots has the directories of [Layout.Root].
func (l Layout) RunRoots() string { return filepath.Join(l.Run, "roots") }

// RunMounts has the directories of [Layout.Mounts].
func (l Layout) RunMounts() string { return filepath.Join(l.Run, "mounts") }

// RunRuntimes has the directories of [Layout.Runtime].
func (l Layout) RunRuntimes() string { return filepath.Join(l.Run, "runtime") }

// VolumeData is the directory with what a volume holds.
func (l Layout) VolumeData(name string) string { return filepath.Join(l.Volumes(), name, "data") }

// DirectoryData is the directory with what was copied from an image.
func (l Layout) DirectoryData(name string) string {
	return filepath.Join(l.Directories(), name, "data")
}

// Container is the absolute path of the directory of one container.
type Container string

// Container returns the directory of a container.
func (l Layout) Container(id string) Container {
	return Container(filepath.Join(l.Containers(), id))
}

// Record is the file with the container's record.
func (c Container) Record() string { return filepath.Join(string(c), "container.json") }

// RootFS is where the root is mounted of a container without a user namespace.
func (c Container) RootFS() string { return filepath.Join(string(c), "rootfs") }

// Disk has everything of the host's disk that the container can write to.
func (c Container) Disk() string { return filepath.Join(string(c), "disk") }

// Upper is the upper layer of the container's root, where the size of that has no bound.
func (c Container) Upper() string { return filepath.Join(c.Disk(), Upper) }

// Work is the overlay's work directory, where the size of the upper layer has no bound.
func (c Container) Work() string { return filepath.Join(c.Disk(), Work) }

// Filesystem is the file with upper, work and etc, where what the container writes is bounded.
func (c Container) Filesystem() string { return filepath.Join(c.Disk(), "filesystem") }

// Exit is the file that the container's first process writes its exit status to.
func (c Container) Exit() string { return filepath.Join(c.Disk(), "exit") }

// Etc has the container's own files of /etc, where what it writes has no bound.
func (c Container) Etc() string { return filepath.Join(c.Disk(), Etc) }

// Output is the FIFO that the container prints to.
func (c Container) Output() string { return filepath.Join(string(c), "output") }

// Log is the file with the newest part of the container's log.
func (c Container) Log() string { return filepath.Join(string(c), "log") }

// OldLog is the file with the part of the log before that.
func (c Container) OldLog() string { return c.Log() + ".1" }

// Memory is the directory with the processes of a container that was hibernated.
func (c Container) Memory() string { return filepath.Join(string(c), "memory") }

// Held is a file that is there while a snapshot keeps the container's processes from running.
func (c Container) Held() string { return filepath.Join(string(c), "held") }

// End is the file that the keeper records the container's end in.
func (c Container) End() string { return filepath.Join(string(c), "end.json") }

// PIDFile is the file that the OCI runtime writes the first process's id to.
func (c Container) PIDFile() string { return filepath.Join(string(c), "pid") }

// Make makes every directory that is missing.
func (l Layout) Make() error {
	if err := makePrivate(l.Data, DirectoryMode); err != nil {
		return err
	}
	for _, path := range []string{l.Volumes(), l.Directories(), l.Containers(), l.Trash()} {
		if err := placement.MakeSpread(path, DirectoryMode); err != nil {
			return err
		}
	}
	shared := []string{l.Run, l.RunMounts(), l.RunRoots()}
	if filepath.Dir(l.Run) == RunDirectories {
		shared = append([]string{RunDirectories}, shared...)
	}
	for _, path := range shared {
		if err := makePrivate(path, ThroughMode); err != nil {
			return err
		}
	}
	return os.MkdirAll(l.RunRuntimes(), DirectoryMode)
}

// makePrivate makes a directory, or makes sure that no one else can read or change the one that
// there is: layers have programs with set-user-id.
func makePrivate(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&^mode != 0 {
		return fmt.Errorf("%s must be a directory with mode %#o, and is %s", path, mode, info.Mode())
	}
	return os.Chmod(path, mode) // whatever the umask is, and what an earlier release has made
}

// RemoveRun removes what does not outlive a reboot, of an Engine without containers and keeper.
func (l Layout) RemoveRun() error {
	var errs []error
	for _, path := range []string{l.RunMounts(), l.RunRoots(), l.RunRuntimes()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(append(errs, os.Remove(l.Run))...)
}

// Lock keeps other Engines from the data directory for as long as the file is open.
func (l Layout) Lock() (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(l.Data, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Exclusive(file); err != nil {
		_ = file.Close()
		if errors.Is(err, flock.ErrHeld) {
			return nil, fmt.Errorf("directory %s is in use by another service", l.Data)
		}
		return nil, fmt.Errorf("lock %s: %w", l.Data, err)
	}
	return file, nil
}

// Key makes the names unique that the Engine of one data directory uses on the host.
func Key(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:4])
}

const maxNameBytes = 200

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// CheckName returns an error that wraps [engine.ErrInvalid] for what a container, volume or
// directory cannot be called. Volumes and directories are files of that name. field is what the
// error calls the name.
func CheckName(field, name string) error {
	if len(name) > maxNameBytes || !validName.MatchString(name) {
		return fmt.Errorf("%w: %s: %q must be 1 to %d letters, digits, _, . and -, and begin with a letter or digit",
			engine.ErrInvalid, field, name, maxNameBytes)
	}
	return nil
}

// NewID returns 32 random hexadecimal digits.
func NewID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// ReplaceFile writes a file that is there as a whole, or as it was before; after a loss of power it
// may be cut off.
func ReplaceFile(path string, content []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// ReplaceFileSynced is ReplaceFile for what a loss of power must neither undo nor cut off. The
// directory itself may be new: it is found after that, too.
func ReplaceFileSynced(path string, content []byte) error {
	replace, err := PrepareFileSynced(path, ".next", content)
	if err != nil {
		return err
	}
	return replace()
}

// PrepareFileSynced is ReplaceFileSynced in two steps. The first one writes the content to a file
// of that name with the suffix; replace puts that in its place, which takes no room on the disk.
func PrepareFileSynced(path, suffix string, content []byte) (replace func() error, err error) {
	next := path + suffix
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, err
	}
	return func() error {
		if err := os.Rename(next, path); err != nil {
			return err
		}
		directory := filepath.Dir(path)
		return errors.Join(SyncDirectory(directory), SyncDirectory(filepath.Dir(directory)))
	}, nil
}

// SyncDirectory makes the names in a directory outlast a loss of power.
func SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
