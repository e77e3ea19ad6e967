package bundle

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// account is the user that a container runs as.
type account struct {
	user specs.User
	home string // HOME
}

// groups are those of the user.
func (a account) groups() []uint32 { return append(slices.Clone(a.user.AdditionalGids), a.user.GID) }

// ids are those of the user and its groups.
func (a account) ids() []uint32 { return append(a.groups(), a.user.UID) }

// UserIDs returns the ids of the image's user and its groups.
func UserIDs(directories []string, user string) ([]uint32, error) {
	found, err := resolveUser(directories, user)
	if err != nil {
		return nil, err
	}
	return found.ids(), nil
}

// resolveUser finds the user of an image ("", "name", "uid", either with ":group" or ":gid") in the
// image's /etc/passwd and /etc/group, by Docker's rules: numbers need no entry, names do, and the
// groups that have the user as a member are its own, unless a group is given.
func resolveUser(directories []string, wanted string) (account, error) {
	image, err := openLayers(directories)
	if err != nil {
		return account{}, err
	}
	defer image.close()
	users, err := entries(image, "/etc/passwd", 6)
	if err != nil {
		return account{}, err
	}
	name, group, _ := strings.Cut(wanted, ":")
	if name == "" {
		name = "0"
	}
	found := account{home: "/"}
	user, known := find(users, name)
	switch {
	case known:
		if found.user.UID, err = number("user", user[2]); err != nil {
			return account{}, err
		}
		if found.user.GID, err = number("group", user[3]); err != nil {
			return account{}, err
		}
		if user[5] != "" {
			found.home = user[5]
		}
	case isNumber(name):
		if found.user.UID, err = number("user", name); err != nil {
			return account{}, err
		}
	default:
		return account{}, invalid("user", "%q is not in the image's /etc/passwd", name)
	}
	if group == "" && !known {
		return found.with(nil), nil
	}
	groups, err := entries(image, "/etc/group", 4)
	if err != nil {
		return account{}, err
	}
	if group == "" {
		return found.with(memberships(groups, user[0])), nil
	}
	if entry, ok := find(groups, group); ok {
		group = entry[2]
	} else if !isNumber(group) {
		return account{}, invalid("user", "group %q is not in the image's /etc/group", group)
	}
	found.user.GID, err = number("group", group)
	return found.with(nil), err
}

// with gives the user its additional groups, of which its own is always one: a process could drop
// it otherwise, and with it what the group is denied.
func (a account) with(groups []uint32) account {
	a.user.AdditionalGids = []uint32{a.user.GID}
	for _, group := range groups {
		if !slices.Contains(a.user.AdditionalGids, group) {
			a.user.AdditionalGids = append(a.user.AdditionalGids, group)
		}
	}
	return a
}

func memberships(groups [][]string, user string) []uint32 {
	var ids []uint32
	for _, group := range groups {
		if id, err := number("group", group[2]); err == nil &&
			slices.Contains(strings.Split(group[3], ","), user) {
			ids = append(ids, id)
		}
	}
	return ids
}

// entries reads the lines that have the number of fields at least; a missing file has none.
func entries(image layers, name string, fields int) ([][]string, error) {
	content, err := image.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, invalid("user", "%w", err)
	}
	var found [][]string
	for line := range strings.Lines(string(content)) {
		if entry := strings.Split(strings.TrimSpace(line), ":"); len(entry) >= fields {
			found = append(found, entry)
		}
	}
	return found, nil
}

// find returns the first entry with the name, or else the one with the number.
func find(entries [][]string, key string) ([]string, bool) {
	for _, column := range []int{0, 2} {
		for _, entry := range entries {
			if entry[column] == key {
				return entry, true
			}
		}
	}
	return nil, false
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

func number(kind, text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id > math.MaxInt32 {
		return 0, invalid("user", "%s %q is not in 0..%d", kind, text, math.MaxInt32)
	}
	return uint32(id), nil
}
