package bundle

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// kernelDirectories are where the kernel's file systems are mounted in every container.
var kernelDirectories = []string{"/proc", "/dev", sysTarget}

func isKernels(target string) bool {
	return slices.ContainsFunc(kernelDirectories, func(directory string) bool { return within(target, directory) })
}

// within reports whether a clean path is a directory or lies in it.
func within(name, directory string) bool {
	return name == directory || directory == "/" || strings.HasPrefix(name, directory+"/")
}

// checkOwnTargets refuses an image that has something else than directories where the kernel's file
// systems are mounted.
func checkOwnTargets(image layers) error {
	for _, directory := range kernelDirectories {
		switch at, err := image.resolve(directory); {
		case err != nil:
			return invalid("image", "%s: %w", directory, err)
		case len(at.links) > 0:
			return invalid("image", "%s is a symbolic link; a file system of the kernel is mounted there", directory)
		case !at.directory && !at.missing:
			return invalid("image", "%s is not a directory; a file system of the kernel is mounted there", directory)
		}
	}
	return nil
}

// targets returns the mounts with the targets that the runtime is given: clean, and without
// symbolic links of the image.
func targets(image layers, mounts []Mount) ([]Mount, error) {
	resolved := make([]Mount, len(mounts))
	places := make([]place, len(mounts))
	for i, mount := range mounts {
		mount.Target = filepath.Clean(mount.Target)
		at, err := image.resolve(mount.Target)
		if rule := wrongPlace(mount, at, err); rule != "" {
			return nil, &engine.TargetError{Target: mount.Target, Rule: rule}
		}
		mount.Target = at.path
		resolved[i], places[i] = mount, at
	}
	// What lies over a symbolic link would decide where it leads, and what lies over another mount,
	// what is there.
	for i, mount := range resolved {
		if len(places[i].links) == 0 {
			continue
		}
		for k, other := range resolved {
			overlaps := within(other.Target, mount.Target) || within(mount.Target, other.Target) ||
				slices.ContainsFunc(places[i].links, func(link string) bool { return within(link, other.Target) })
			if k != i && overlaps {
				return nil, &engine.TargetError{Target: mounts[k].Target,
					Rule: "overlaps where the image's symbolic links lead " + mounts[i].Target + ", which is " + mount.Target}
			}
		}
	}
	return resolved, nil
}

// CheckTargets refuses mounts that the image has no place for, as Write does later. The error is a
// [*engine.TargetError].
func CheckTargets(directories []string, mounts []engine.Mount) error {
	image, err := openLayers(directories)
	if err != nil {
		return err
	}
	defer image.close()
	asked := make([]Mount, len(mounts))
	for i, m := range mounts {
		asked[i] = Mount{Target: m.Target, FollowLinks: m.Directory != ""}
	}
	_, err = targets(image, asked)
	return err
}

// HasDirectory reports whether the image has a directory at the path.
func HasDirectory(directories []string, name string) (bool, error) {
	image, err := openLayers(directories)
	if err != nil {
		return false, err
	}
	defer image.close()
	at, err := image.resolve(name)
	return err == nil && at.directory, nil
}

// wrongPlace says what is wrong with the place where a mount's target leads; "" for nothing.
func wrongPlace(mount Mount, at place, err error) string {
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return "leads through something in the image that is not a directory"
	case err != nil:
		return "cannot be found in the image: " + err.Error()
	case len(at.links) > 0 && !mount.FollowLinks:
		return "leads through the symbolic link " + quoted(at.links[0]) + " of the image to " + quoted(at.path) + "; symbolic links are not followed there"
	case at.path == "/" && len(at.links) == 0:
		return "is the root of the container"
	case at.path == "/" || len(at.links) > 0 && isKernels(at.path):
		return "leads through the symbolic link " + quoted(at.links[0]) + " of the image to " + quoted(at.path) + ", where nothing else can be mounted"
	case mount.FollowLinks && !at.directory && !at.missing:
		return "is not a directory in the image"
	}
	return ""
}

// quoted is a path of an image in a message, short and on one line.
func quoted(name string) string {
	const limit = 200
	return fmt.Sprintf("%.*q", limit, name)
}

// checkWorkingDirectory refuses one that leads to files of processes: of the runtime's own, for
// instance, before the container's program runs.
func checkWorkingDirectory(directories []string, directory string) error {
	image, err := openLayers(directories)
	if err != nil {
		return err
	}
	defer image.close()
	at, err := image.resolve(path.Join("/", directory))
	if err == nil && isKernels(at.path) {
		return invalid("working directory", "%s leads to %s, a file system of the kernel", quoted(directory), quoted(at.path))
	}
	return nil
}
