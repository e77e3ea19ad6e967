package hostpaths

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// The engine is given a path, and follows it later, when a sandbox that can write to a directory on
// the way may have put a link there. So what was checked is pinned: it is opened, the kernel
// reports where what was opened really lies, and that is mounted at a place of the service's own,
// which the engine is given instead. No sandbox can write there. The place is needed only while the
// container is started.

const (
	openPath            = 0x200000 // O_PATH of open(2): the descriptor stands for the file, and nothing of it is read
	unmountNoFollow     = 8        // UMOUNT_NOFOLLOW of umount2(2)
	pinnedDirectoryMode = 0o700
)

// preparePins makes the directory for pins usable, removes what a killed service left there, and
// tries whether this process may mount. It returns the directory without symbolic links, or an
// error where this process may not mount.
func preparePins(directory string) (real string, err error) {
	if err := os.MkdirAll(directory, pinnedDirectoryMode); err != nil {
		return "", err
	}
	if real, err = filepath.EvalSymlinks(directory); err != nil {
		return "", err
	}
	if err := sweepPins(real); err != nil {
		return "", err
	}
	trial, source := filepath.Join(real, "trial"), filepath.Join(real, "trial-source")
	if err := os.Mkdir(source, pinnedDirectoryMode); err != nil {
		return "", err
	}
	err = pin(source, trial)
	return real, errors.Join(err, unpin(trial), os.Remove(source))
}

// sweepPins removes every pin. It never removes anything through one: a pin that cannot be
// unmounted stays.
func sweepPins(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, unpin(filepath.Join(directory, entry.Name())))
	}
	return errors.Join(errs...)
}

// PinAll replaces the host's paths in a container's mounts by pins of them. release removes the
// pins. The mounts stay as they are where nothing can be pinned.
func (p Paths) PinAll(record lifecycle.Record, mounts []engine.Mount) (release func(), err error) {
	var pins []string
	release = func() {
		for _, place := range pins {
			if err := unpin(place); err != nil {
				p.log.Error().Err(err).Str("sandbox_id", record.Sandbox.ID).Msg("cannot release a pinned host path; retried at the next start of the service")
			}
		}
	}
	if !p.Pinned() {
		return release, nil
	}
	volumes := record.Spec.Volumes
	asked := mounts[len(mounts)-len(volumes):] // before them is what the service mounts
	for i, v := range volumes {
		if v.HostPath == "" {
			continue
		}
		place := filepath.Join(p.pins, record.Sandbox.ID+"-"+strconv.Itoa(i))
		err := pin(asked[i].HostPath, place)
		if err == nil {
			pins = append(pins, place)
			asked[i].HostPath = place
			continue
		}
		release()
		if errors.Is(err, errExchanged) {
			err = exchanged(i, v)
		}
		return nil, err
	}
	return release, nil
}

// PinAgain returns the mounts of the volumes of a box that is made or started again. The host's
// paths are pinned where they were when it was made: the engine knows these places.
func (p Paths) PinAgain(record lifecycle.Record) (mounts []engine.Mount, release func(), err error) {
	mounts = make([]engine.Mount, len(record.Spec.Volumes))
	for i, v := range record.Spec.Volumes {
		if mounts[i], err = p.Mount(i, v); err != nil {
			return nil, nil, err
		}
	}
	release, err = p.PinAll(record, mounts)
	return mounts, release, err
}

// CheckMounted resolves the host's paths once more, after the engine has mounted them, where they
// could not be pinned: another process may have put a link in the place of a directory between the
// check and the mount. A link that was there for that moment only is not found.
func (p Paths) CheckMounted(volumes []lifecycle.Volume, mounted []engine.Mount) error {
	if p.Pinned() {
		return nil
	}
	for i, v := range volumes {
		if v.HostPath == "" {
			continue
		}
		again, err := p.Mount(i, v)
		if err != nil || !slices.Contains(mounted, again) {
			return exchanged(i, v)
		}
	}
	return nil
}

func exchanged(i int, v lifecycle.Volume) error {
	return lifecycle.BoxFailuref(lifecycle.ReasonContainerError, "volumes[%d].host.path: %q %v", i, v.HostPath, errExchanged)
}

// errExchanged is a path that is no longer what it was when it was checked.
var errExchanged = errors.New("was exchanged while the sandbox was being started")

// pin mounts a path without symbolic links, with everything that is mounted below it, at place,
// which must not exist.
func pin(path, place string) error {
	descriptor, err := syscall.Open(path, openPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", errExchanged, err)
	}
	file := os.NewFile(uintptr(descriptor), path)
	defer file.Close()
	opened := "/proc/self/fd/" + strconv.Itoa(descriptor)
	if real, err := os.Readlink(opened); err != nil || real != path {
		return errors.Join(errExchanged, err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		err = os.Mkdir(place, pinnedDirectoryMode)
	case info.Mode().IsRegular():
		err = os.WriteFile(place, nil, 0o600)
	default: // a link, a socket or a device
		return errExchanged
	}
	if err != nil {
		return fmt.Errorf("make a place for a host path: %w", err)
	}
	if err := syscall.Mount(opened, place, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return errors.Join(fmt.Errorf("pin a host path: %w", err), os.Remove(place))
	}
	return nil
}

// unpin undoes pin; unpinning a path that is not pinned, or missing, succeeds.
func unpin(place string) error {
	// First on its own: else what is mounted below the pin would be unmounted at its original
	// place, too.
	err := syscall.Mount("", place, "", syscall.MS_PRIVATE|syscall.MS_REC, "")
	if err == nil {
		err = syscall.Unmount(place, syscall.MNT_DETACH|unmountNoFollow)
	} else if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EPERM) {
		err = nil // not a mount point, or this process could not have made it one; if it is one, it is not removed either
	}
	if err != nil {
		return fmt.Errorf("release a pinned host path: %w", err)
	}
	if err := os.Remove(place); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("release a pinned host path: %w", err)
	}
	return nil
}
