package identity

import "fmt"

// What the user namespace of this process maps (user_namespaces(7)).
const (
	userMap  = "/proc/self/uid_map"
	groupMap = "/proc/self/gid_map"
)

// HasUser reports whether the sandbox's user namespace has a user with that number: no other can
// own a file. It reports true where that cannot be found out.
func HasUser(uid uint32) bool { return inMap(userMap, uid) }

// HasGroup is HasUser for groups.
func HasGroup(gid uint32) bool { return inMap(groupMap, gid) }

func inMap(path string, id uint32) bool {
	known, has := false, false
	lines(path, func(line string) bool {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil {
			known, has = true, uint64(id) >= first && uint64(id)-first < count
		}
		return !has
	})
	return has || !known
}
