package files

import (
	"strconv"

	"sandbox.internal/execd/internal/identity"
)

// names finds the names of users and groups for one request. It caches them, because each look-up
// reads /etc/passwd or /etc/group again and a search can ask a hundred thousand times; it lives no
// longer than the request, because a sandbox may add users at any time. Files may have any number
// for an owner, so it caches maxNames of each.
type names struct {
	users  map[uint32]string
	groups map[uint32]string
}

const maxNames = 4096

// remember adds a name to a cache, and empties that when it has too many.
func remember(known map[uint32]string, id uint32, name string) {
	if len(known) >= maxNames {
		clear(known)
	}
	known[id] = name
}

func newNames() *names {
	return &names{users: map[uint32]string{}, groups: map[uint32]string{}}
}

// user returns the name of a user, or the number where it has none (or the image has no
// /etc/passwd).
func (n *names) user(id uint32) string {
	name, ok := n.users[id]
	if !ok {
		name = strconv.FormatUint(uint64(id), 10)
		if u, ok := identity.UserOf(id); ok {
			name = u.Name
		}
		remember(n.users, id, name)
	}
	return name
}

// group returns the name of a group, or the number where it has none.
func (n *names) group(id uint32) string {
	name, ok := n.groups[id]
	if !ok {
		name = strconv.FormatUint(uint64(id), 10)
		if g, ok := identity.GroupName(id); ok {
			name = g
		}
		remember(n.groups, id, name)
	}
	return name
}

// userID returns the number of a user given by number or name; ok is false for an unknown name.
func userID(owner string) (id int, ok bool) {
	if id, ok := number(owner); ok {
		return id, true
	}
	u, ok := identity.UserNamed(owner)
	return int(u.UID), ok && u.UID != unchanged
}

// groupID is userID for groups.
func groupID(group string) (id int, ok bool) {
	if id, ok := number(group); ok {
		return id, true
	}
	gid, ok := identity.GroupNamed(group)
	return int(gid), ok && gid != unchanged
}

// unchanged is no id: chown(2) reads the highest 32-bit number as "unchanged".
const unchanged = 1<<32 - 1

// number reads an id.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == unchanged {
		return 0, false
	}
	return int(n), true
}
