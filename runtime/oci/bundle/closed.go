package bundle

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is a folder of an image with its attributes.
type Folder struct {
	Path     string // relative to the root
	Mode     uint32 // permissions, with set-user-id, set-group-id and the sticky bit
	UID, GID int
}

// ClosedWays returns the folders on the way to the targets that the image's user cannot pass,
// opened for all users, and those above them as they are; each after those above it. The ways
// lead where written decides, as in [Input].Written.
func ClosedWays(folders, written []string, user string, targets []string) ([]Folder, error) {
	account, err := resolveUser(folders, user)
	if err != nil || account.user.UID == 0 {
		return nil, err
	}
	image, err := openLayers(slices.Concat(folders, written))
	if err != nil {
		return nil, err
	}
	defer image.close()
	found := map[string]Folder{}
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
			folder, err := entered.attributes()
			if err != nil {
				return nil, err
			}
			if !account.passes(folder) {
				folder.Mode |= 0o111
				needed = append(needed, folder.Path)
			}
			found[folder.Path] = folder
		}
	}
	var ways []Folder
	for name, folder := range found {
		if slices.ContainsFunc(needed, func(closed string) bool { return within(closed, name) }) {
			ways = append(ways, folder)
		}
	}
	slices.SortFunc(ways, func(a, b Folder) int { return strings.Compare(a.Path, b.Path) })
	return ways, nil
}

// attributes are those of the highest layer.
func (l level) attributes() (Folder, error) {
	folder, err := l.roots[0].Open(path.Join(l.at, "."))
	if err != nil {
		return Folder{}, err
	}
	defer func() { _ = folder.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(folder.Fd()), &stat); err != nil {
		return Folder{}, err
	}
	return Folder{Path: l.at, Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid)}, nil
}

// passes reports whether the user may pass through a folder, without capabilities.
func (a account) passes(folder Folder) bool {
	switch {
	case uint32(folder.UID) == a.user.UID: //nolint:gosec // ids have 32 bits
		return folder.Mode&0o100 != 0
	case slices.Contains(a.groups(), uint32(folder.GID)): //nolint:gosec // ids have 32 bits
		return folder.Mode&0o010 != 0
	}
	return folder.Mode&0o001 != 0
}
