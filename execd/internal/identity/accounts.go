package identity

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The lists of accounts. What lines reads of them is what they are taken to have.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	maxList    = 1 << 20
)

// User is an account of the sandbox.
type User struct {
	Name     string
	UID, GID uint32
	Home     string
}

// UserOf returns the user with a number.
func UserOf(uid uint32) (User, bool) {
	return findUser(passwdFile, func(u User) bool { return u.UID == uid })
}

// UserNamed returns the user with a name.
func UserNamed(name string) (User, bool) {
	return findUser(passwdFile, func(u User) bool { return u.Name == name })
}

// GroupName returns the name of the group with a number.
func GroupName(gid uint32) (string, bool) {
	g, ok := findGroup(groupFile, func(g group) bool { return g.gid == gid })
	return g.name, ok
}

// GroupNamed returns the number of the group with a name.
func GroupNamed(name string) (gid uint32, ok bool) {
	g, ok := findGroup(groupFile, func(g group) bool { return g.name == name })
	return g.gid, ok
}

func findUser(path string, match func(User) bool) (found User, ok bool) {
	// name:password:uid:gid:comment:home:shell
	eachLine(path, 7, func(fields []string) bool {
		uid, uidErr := strconv.ParseUint(fields[2], 10, 32)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 32)
		if uidErr != nil || gidErr != nil {
			return true
		}
		found = User{Name: fields[0], UID: uint32(uid), GID: uint32(gid), Home: fields[5]}
		ok = match(found)
		return !ok
	})
	if !ok {
		return User{}, false
	}
	return found, true
}

// group is a line of /etc/group.
type group struct {
	name    string
	gid     uint32
	members []string
}

func findGroup(path string, match func(group) bool) (found group, ok bool) {
	// name:password:gid:members
	eachLine(path, 4, func(fields []string) bool {
		gid, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return true
		}
		found = group{name: fields[0], gid: uint32(gid), members: strings.Split(fields[3], ",")}
		ok = match(found)
		return !ok
	})
	if !ok {
		return group{}, false
	}
	return found, true
}

// groupsOf returns the numbers of the groups of which a user is a member, its primary one first,
// each once. It returns ErrTooManyGroups.
func groupsOf(path string, account User) ([]uint32, error) {
	groups := []uint32{account.GID}
	findGroup(path, func(g group) bool {
		if slices.Contains(g.members, account.Name) && !slices.Contains(groups, g.gid) {
			groups = append(groups, g.gid)
		}
		return len(groups) > maxGroups
	})
	if len(groups) > maxGroups {
		return nil, ErrTooManyGroups
	}
	return groups, nil
}

// eachLine calls f with the fields of each line that has so many and a name, until f returns false.
func eachLine(path string, count int, f func(fields []string) bool) {
	lines(path, func(line string) bool {
		fields := strings.SplitN(line, ":", count)
		return len(fields) != count || fields[0] == "" || f(fields)
	})
}

// lines calls f with each line of a file until f returns false. The sandbox's root may have made
// anything of the file, so only a regular one is read, and maxList bytes of it. One that cannot be
// read is empty, as a missing one is.
func lines(path string, f func(line string) bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // without O_NONBLOCK a FIFO would wait for a writer
	if err != nil {
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	scanner := bufio.NewScanner(io.LimitReader(file, maxList))
	scanner.Buffer(nil, maxList)
	for scanner.Scan() && f(scanner.Text()) {
	}
}
