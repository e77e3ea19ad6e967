package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/internal/layout"
)

// What the OCI runtime mounts something on has to be there, and it makes what the image lacks. On
// an overlay it does so on the disk, together with the directory that it is in: 0.1 to 0.3 ms for
// each file at the start of a container, and as much at its end. What every container has mounts on
// is therefore in a layer of its own below those of the image. Whatever the image has at such a
// path shows instead.

// manyLayers is how many an image has that gets no other one: the kernel takes 500, and Linux
// before 6.8 what a page of text names, about 200.
const manyLayers = 128

// layers returns the layers of the container's root file system, lowest first.
func (s *start) layers() ([]string, error) {
	below := slices.Concat(s.image.Layers, s.chain)
	if s.test || len(below) >= manyLayers { // the image of a test lies elsewhere
		return below, nil
	}
	mountedOn, err := s.targets.layer(s.directoryTargets())
	if err != nil {
		return nil, err
	}
	return append([]string{mountedOn}, below...), nil
}

// directoryTargets returns where the container has directories of the service's, which are the same
// in many containers.
func (s *start) directoryTargets() []string {
	var targets []string
	for _, m := range s.spec.Mounts {
		if m.Directory != "" {
			targets = append(targets, filepath.Clean(m.Target))
		}
	}
	slices.Sort(targets)
	return targets
}

// targets makes the layers with what containers have mounts on.
type targets struct {
	directory string

	mu   sync.Mutex
	made map[string]bool // the layers that are complete
}

// layer returns the layer with what every container has mounts on, and with these directories. It
// is made when it is missing, and then kept.
func (t *targets) layer(directories []string) (string, error) {
	sum := sha256.Sum256([]byte(strings.Join(directories, "\x00")))
	layer := filepath.Join(t.directory, hex.EncodeToString(sum[:8]))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made[layer] {
		return layer, nil
	}
	if err := os.MkdirAll(t.directory, layout.DirectoryMode); err != nil {
		return "", err
	}
	if err := makeDirectories(layer, append([]string{"/dev", "/proc", "/sys", "/etc"}, directories...)); err != nil {
		return "", err
	}
	for _, file := range []string{hostsFile, hostnameFile, resolvFile} {
		if err := writeShared(filepath.Join(layer, "etc", file), nil); err != nil {
			return "", err
		}
	}
	t.made[layer] = true
	return layer, nil
}

// makeDirectories makes a layer with these directories, which every user of the container may
// enter. Those that are there stay.
func makeDirectories(layer string, directories []string) error {
	made := []string{layer}
	for _, directory := range directories {
		path := layer
		for _, name := range strings.Split(strings.Trim(directory, "/"), "/") {
			path = filepath.Join(path, name)
			made = append(made, path)
		}
	}
	for _, path := range made {
		if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) { //nolint:gosec // as in most images
			return err
		}
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // whatever the service's umask is
			return err
		}
	}
	return nil
}

// makeClosedWays gives the container's own layer the directories on the way to the service's that
// its user could not pass otherwise, such as a closed /opt: the container's program is there. An
// earlier start has made them: what the container has written since leads wherever it likes, and is
// not followed.
func (s *start) makeClosedWays() error {
	targets := s.directoryTargets()
	if s.test || s.again || len(targets) == 0 {
		return nil
	}
	ways, err := bundle.ClosedWays(s.image.Layers, s.chain, s.image.Config.User, targets)
	if err != nil {
		return err
	}
	upper := diskPath(s.container, layout.Upper)
	for _, way := range ways {
		at := filepath.Join(upper, way.Path)
		err := os.Mkdir(at, layout.DirectoryMode)
		if err == nil {
			err = os.Chown(at, way.UID, way.GID)
		}
		if err == nil {
			err = unix.Chmod(at, way.Mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
