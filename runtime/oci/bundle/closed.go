package bundle

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Directory is a directory of an image with its attributes.
type Directory struct {
	Path     string // relative to the root
	Mode     uint32 // permissions, with set-user-id, set-group-id and the sticky bit
	UID, GID int
}

// ClosedWays returns the directories on the way to the targets that the image's user cannot pass,
// opened for all users, and those above them as they are; each after those above it. The ways
// lead where written decides, as in [Input].Written.
func ClosedWays(directories, written []string, user string, targets []string) ([]Directory, error) {
	account, err := resolveUser(directories, user)
	if err != nil || account.user.UID == 0 {
		return nil, err
	}
	image, err := openLayers(slices.Concat(directories, written))
	if err != nil {
		return nil, err
	}
	defer image.close()
	found := map[string]Directory{}
	var needed []string
	for _, target := range targets {
		at, err := image.resolve(target)
		if err != nil {
			continue // which the mount reports
		}
		for _, entered := range at.entered {
			if entered.at == strings.TrimPrefix(at.path, "/") {
				continue // it is covered
			}
			directory, err := entered.attributes()
			if err != nil {
				return nil, err
			}
			if !account.passes(directory) {
				directory.Mode |= 0o111
				needed = append(needed, directory.Path)
			}
			found[directory.Path] = directory
		}
	}
	var ways []Directory
	for name, directory := range found {
		if slices.ContainsFunc(needed, func(closed string) bool { return within(closed, name) }) {
			ways = append(ways, directory)
		}
	}
	slices.SortFunc(ways, func(a, b Directory) int { return strings.Compare(a.Path, b.Path) })
	return ways, nil
}

// attributes are those of the highest layer.
func (l level) attributes() (Directory, error) {
	directory, err := l.roots[0].Open(path.Join(l.at, "."))
	if err != nil {
		return Directory{}, err
	}
	defer func() { _ = directory.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(directory.Fd()), &stat); err != nil {
		return Directory{}, err
	}
	return Directory{Path: l.at, Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid)}, nil
}

// passes reports whether the user may pass through a directory, without capabilities.
func (a account) passes(directory Directory) bool {
	switch {
	case uint32(directory.UID) == a.user.UID: //nolint:gosec // ids have 32 bits
		return directory.Mode&0o100 != 0
	case slices.Contains(a.groups(), uint32(directory.GID)): //nolint:gosec // ids have 32 bits
		return directory.Mode&0o010 != 0
	}
	return directory.Mode&0o001 != 0
}
