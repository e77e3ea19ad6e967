package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/remove"
)

// A layer need not have entries for the directories above its files, and then has them with owner 0
// and mode 0755. overlayfs takes the attributes of a directory from the highest layer that has it:
// /tmp would lose its mode 1777. So an image with such layers gets a layer of its own above them,
// its patch, which has those directories alone, with what the layers below say of them. containerd
// gives the same.

// maxPatched is how many layers an image has that gets a patch: see the bound of layers that
// kernels mount.
const maxPatched = 128

// maxPatchPath is how long the path of a directory in a patch may be; others are left as they are.
const maxPatchPath = 4000

// patchFile is the record of a patch.
type patchFile struct {
	Bytes int64  `json:"bytes"` // about what it takes on the disk
	Boot  string `json:"boot"`  // of the host, when it was made: after another one it is made again
}

// patchedDirectory is about what a directory takes on the disk.
const patchedDirectory = 4096 + 256

func (f directories) patch(id string) string     { return f.path(patchesDirectory, hexOf(id)) }
func (f directories) patchTree(id string) string { return filepath.Join(f.patch(id), treeDirectory) }

// makePatch makes the patch of an image whose layers are here, if it needs one and has none, and
// returns the bytes that it has reserved for it.
func (s *Store) makePatch(ctx context.Context, id string, layers []string, reserve func(context.Context, int64) error) (bytes int64, err error) {
	s.mu.Lock()
	visible := s.visible(layers)
	needed := slices.ContainsFunc(visible, func(diffID string) bool { return s.layers[diffID].Implied })
	s.mu.Unlock()
	if !needed || len(visible) > maxPatched {
		return 0, nil
	}
	var has patchFile
	if readJSON(filepath.Join(s.patch(id), layerRecord), &has) == nil {
		return 0, nil
	}
	found, err := s.patchOf(ctx, visible)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	bytes = int64(len(found)) * patchedDirectory
	if err := reserve(ctx, bytes); err != nil {
		return 0, err
	}
	directory := s.temporary(makingDirectory)
	err = writePatch(filepath.Join(directory, treeDirectory), found)
	if err == nil {
		err = s.writeJSON(filepath.Join(directory, layerRecord), patchFile{Bytes: bytes, Boot: s.boot})
	}
	if err == nil {
		err = os.Rename(directory, s.patch(id))
	}
	if err == nil {
		return bytes, nil
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) { // another call was faster
		err = nil
	}
	s.giveBack(bytes)
	return 0, errors.Join(err, remove.All(context.WithoutCancel(ctx), directory))
}

// visible returns the layers that are mounted, lowest first. It needs s.mu.
func (s *Store) visible(layers []string) []string {
	for at := len(layers) - 1; at > 0; at-- {
		if s.layers[layers[at]].Opaque { // overlayfs does not look at this attribute of a layer's root
			return layers[at:]
		}
	}
	return layers
}

// stacked is a layer as patchOf looks at it.
type stacked struct {
	tree    string
	implied map[string]bool
}

// patchOf returns the directories that a patch has, with their attributes.
func (s *Store) patchOf(ctx context.Context, layers []string) (map[string]unix.Stat_t, error) {
	stack := make([]stacked, len(layers))
	names := map[string]bool{}
	for i, diffID := range layers {
		stack[i] = stacked{tree: s.layerTree(diffID), implied: map[string]bool{}}
		var list []string
		if err := readJSON(filepath.Join(s.layer(diffID), impliedRecord), &list); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, name := range list {
			stack[i].implied[name], names[name] = true, true
		}
	}
	found := map[string]unix.Stat_t{}
	alone := "" // a directory that one layer has: what is in it is of that layer, too
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(s.path(makingDirectory))+len(name) > maxPatchPath || alone != "" && strings.HasPrefix(name, alone+"/") {
			continue
		}
		attributes, differs, only, err := attributesIn(stack, name)
		if err != nil {
			return nil, err
		}
		if only {
			alone = name
		}
		if differs {
			found[name] = attributes
		}
	}
	for _, name := range slices.Collect(maps.Keys(found)) {
		for above := path.Dir(name); above != "."; above = path.Dir(above) {
			if _, ok := found[above]; ok {
				continue
			}
			attributes, _, _, err := attributesIn(stack, above)
			if err != nil {
				return nil, err
			}
			found[above] = attributes
		}
	}
	return found, nil
}

// attributesIn returns those of the highest layer that has an entry for the directory, or of the
// highest that has the directory; differs says that the first is not the second, only that one
// layer has it.
func attributesIn(stack []stacked, name string) (attributes unix.Stat_t, differs, only bool, err error) {
	some := 0
	for i := len(stack) - 1; i >= 0; i-- {
		stat, there, last, err := lookIn(stack[i].tree, name)
		switch {
		case err != nil:
			return attributes, false, false, err
		case there && !stack[i].implied[name]:
			return stat, some > 0, false, nil
		case there:
			if some == 0 {
				attributes = stat
			}
			some++
		}
		if last {
			break
		}
	}
	return attributes, false, some == 1, nil
}

// lookIn reports whether a layer has the directory; last says that it hides what the layers below
// have at its place.
func lookIn(tree, name string) (stat unix.Stat_t, there, last bool, err error) {
	at, err := unix.Open(tree, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return stat, false, false, &os.PathError{Op: "open", Path: tree, Err: err}
	}
	defer func() { _ = unix.Close(at) }()
	for part := range strings.SplitSeq(name, "/") {
		err := unix.Fstatat(at, part, &stat, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return stat, false, last, nil
		}
		if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			return stat, false, true, nil
		}
		next := -1
		if err == nil {
			next, err = unix.Openat(at, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return stat, false, false, &os.PathError{Op: "look at", Path: filepath.Join(tree, name), Err: err}
		}
		_ = unix.Close(at)
		at = next
		var value [2]byte
		n, err := unix.Getxattr("/proc/self/fd/"+strconv.Itoa(at), "trusted.overlay.opaque", value[:]) // a descriptor of a path has none
		last = last || err == nil && n == 1 && value[0] == 'y'
	}
	return stat, true, last, nil
}

// writePatch makes the directories in a new directory.
func writePatch(tree string, found map[string]unix.Stat_t) error {
	if err := os.MkdirAll(tree, 0o755); err != nil { //nolint:gosec // as the root of a layer
		return err
	}
	names := slices.Sorted(maps.Keys(found)) // each after those above it
	for _, name := range names {
		if err := os.Mkdir(filepath.Join(tree, name), 0o700); err != nil {
			return err
		}
	}
	slices.Reverse(names)
	for _, name := range names {
		stat, at := found[name], filepath.Join(tree, name)
		err := os.Chown(at, int(stat.Uid), int(stat.Gid))
		if err == nil {
			err = unix.Chmod(at, stat.Mode&0o7777)
		}
		if err == nil {
			err = unix.UtimesNano(at, []unix.Timespec{stat.Atim, stat.Mtim})
		}
		if err != nil {
			return fmt.Errorf("attributes of %s: %w", at, err)
		}
	}
	return os.Chmod(tree, 0o755) //nolint:gosec // whatever the service's umask is
}

// loadPatches throws away patches that are no image's or not of this boot, and makes those that are
// missing.
func (s *Store) loadPatches() error {
	err := s.each(patchesDirectory, func(entry os.DirEntry) error {
		at := s.path(patchesDirectory, entry.Name())
		var file patchFile
		i := s.images["sha256:"+entry.Name()]
		if err := readJSON(filepath.Join(at, layerRecord), &file); err == nil && i != nil && file.Boot == s.boot {
			s.count(i, file.Bytes)
			return nil
		}
		return os.Rename(at, s.temporary(trashDirectory))
	})
	if err != nil {
		return err
	}
	for _, i := range s.images {
		if i.patched {
			continue
		}
		bytes, err := s.makePatch(s.ctx, i.id, i.layers, func(_ context.Context, n int64) error {
			s.giveBack(-n) // what is here already makes no room for it
			return s.checkDisk(n)
		})
		if err != nil {
			// Directories of the image have other modes than they should.
			s.log.Warn().Err(err).Str("image", i.id).Msg("directories that layers of an image have no entry for do not keep their modes")
		}
		if bytes > 0 {
			s.giveBack(bytes) // the image counts it
			s.count(i, bytes)
		}
	}
	return nil
}

// count makes the image one with a patch.
func (s *Store) count(i *image, bytes int64) {
	i.patched = true
	i.bytes += bytes
	s.bytes += bytes
}
