// Package identity resolves the user and the group that a request names to what a process is
// started with, and reads the lists of accounts.
package identity

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxGroups bounds the supplementary groups of a process.
const maxGroups = 1024

// ErrTooManyGroups: the image lists more groups for the user than a process is given.
var ErrTooManyGroups = fmt.Errorf("the user is a member of more than %d groups", maxGroups)

// Identity is the user and the groups that a process runs as.
type Identity struct {
	// Credential is what the kernel is asked for; nil means the daemon's own, which needs no right.
	Credential *syscall.Credential
	// Env are the variables of another user than the daemon's, NAME=value each, if the image lists
	// the user.
	Env []string
}

// Of returns the identity for the user and the group of a request, nil where it names none.
//
// Another user than the daemon's brings its own groups: its primary group if the request names none
// (the group with the user's number when the image has no such user), and the supplementary groups
// that /etc/group lists for it. The daemon's user keeps the daemon's. It returns ErrTooManyGroups.
func Of(uid, gid *uint32) (Identity, error) {
	own := syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	wanted := own
	var env []string
	var err error
	if uid != nil && *uid != own.Uid {
		wanted = syscall.Credential{Uid: *uid, Gid: *uid}
		if account, known := UserOf(*uid); known {
			wanted.Gid = account.GID
			if wanted.Groups, err = groupsOf(groupFile, account); err != nil {
				return Identity{}, err
			}
			env = []string{"HOME=" + account.Home, "USER=" + account.Name, "LOGNAME=" + account.Name}
		}
	}
	if gid != nil {
		wanted.Gid = *gid
	}
	if wanted.Uid != own.Uid {
		return Identity{&wanted, env}, nil
	}
	if wanted.Gid == own.Gid {
		return Identity{}, nil
	}
	if wanted.Groups, err = daemonGroups(); err != nil {
		return Identity{}, err
	}
	return Identity{Credential: &wanted}, nil
}

func daemonGroups() ([]uint32, error) {
	numbers, err := unix.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("find the daemon's groups: %w", err)
	}
	groups := make([]uint32, len(numbers))
	for i, number := range numbers {
		groups[i] = uint32(number)
	}
	return groups, nil
}
