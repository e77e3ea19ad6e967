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

// kernelFolders are where the kernel's file systems are mounted in every container.
var kernelFolders = []string{"/proc", "/dev", sysTarget}

func isKernels(target string) bool {
	return slices.ContainsFunc(kernelFolders, func(folder string) bool { return within(target, folder) })
}

// within reports whether a clean path is a folder or lies in it.
func within(name, folder string) bool {
	return name == folder || folder == "/" || strings.HasPrefix(name, folder+"/")
}

// checkOwnTargets refuses an image that has something else than folders where the kernel's file
// systems are mounted.
func checkOwnTargets(image layers) error {
	for _, folder := range kernelFolders {
		switch at, err := image.resolve(folder); {
		case err != nil:
			return invalid("image", "%s: %w", folder, err)
		case len(at.links) > 0:
			return invalid("image", "%s is a symbolic link; a file system of the kernel is mounted there", folder)
		case !at.folder && !at.missing:
			return invalid("image", "%s is not a folder; a file system of the kernel is mounted there", folder)
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
func CheckTargets(folders []string, mounts []engine.Mount) error {
	image, err := openLayers(folders)
	if err != nil {
		return err
	}
	defer image.close()
	asked := make([]Mount, len(mounts))
	for i, m := range mounts {
		asked[i] = Mount{Target: m.Target, FollowLinks: m.Folder != ""}
	}
	_, err = targets(image, asked)
	return err
}

// HasFolder reports whether the image has a folder at the path.
func HasFolder(folders []string, name string) (bool, error) {
	image, err := openLayers(folders)
	if err != nil {
		return false, err
	}
	defer image.close()
	at, err := image.resolve(name)
	return err == nil && at.folder, nil
}

// wrongPlace says what is wrong with the place where a mount's target leads; "" for nothing.
func wrongPlace(mount Mount, at place, err error) string {
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return "leads through something in the image that is not a folder"
	case err != nil:
		return "cannot be found in the image: " + err.Error()
	case len(at.links) > 0 && !mount.FollowLinks:
		return "leads through the symbolic link " + quoted(at.links[0]) + " of the image to " + quoted(at.path) + "; symbolic links are not followed there"
	case at.path == "/" && len(at.links) == 0:
		return "is the root of the container"
	case at.path == "/" || len(at.links) > 0 && isKernels(at.path):
		return "leads through the symbolic link " + quoted(at.links[0]) + " of the image to " + quoted(at.path) + ", where nothing else can be mounted"
	case mount.FollowLinks && !at.folder && !at.missing:
		return "is not a folder in the image"
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
func checkWorkingDirectory(folders []string, directory string) error {
	image, err := openLayers(folders)
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
