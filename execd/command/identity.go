package command

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity is whom a process runs as.
type identity struct {
	// credential is what the kernel is asked for; nil means the daemon's own, which needs no right.
	credential *syscall.Credential
	// env is what belongs to another user than the daemon's, if the image knows it.
	env []string
}

// identify returns the identity for the user and the group of a request, nil where it names none.
//
// Another user than the daemon's brings its own groups: its primary group if the request names none (the group with the user's number when
// the image does not know the user), and the supplementary groups that /etc/group lists for it. The daemon's user keeps the daemon's.
func identify(uid, gid *uint32) (identity, error) {
	own := syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	wanted := own
	var env []string
	var err error
	if uid != nil && *uid != own.Uid {
		wanted = syscall.Credential{Uid: *uid, Gid: *uid}
		if account, unknown := user.LookupId(strconv.FormatUint(uint64(*uid), 10)); unknown == nil {
			if group, err := strconv.ParseUint(account.Gid, 10, 32); err == nil {
				wanted.Gid = uint32(group)
			}
			if wanted.Groups, err = supplementary(account); err != nil {
				return identity{}, err
			}
			env = []string{"HOME=" + account.HomeDir, "USER=" + account.Username, "LOGNAME=" + account.Username}
		}
	}
	if gid != nil {
		wanted.Gid = *gid
	}
	if wanted.Uid != own.Uid {
		return identity{&wanted, env}, nil
	}
	if wanted.Gid == own.Gid {
		return identity{}, nil
	}
	if wanted.Groups, err = daemonGroups(); err != nil {
		return identity{}, err
	}
	return identity{credential: &wanted}, nil
}

// supplementary returns the groups of which a user is a member, its primary one included.
func supplementary(account *user.User) ([]uint32, error) {
	names, err := account.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("find the groups of user %s: %w", account.Uid, err)
	}
	var groups []uint32
	for _, name := range names {
		if group, err := strconv.ParseUint(name, 10, 32); err == nil && !slices.Contains(groups, uint32(group)) {
			groups = append(groups, uint32(group))
		}
		if len(groups) > maxGroups {
			return nil, invalidf("uid: the user is a member of more than %d groups", maxGroups)
		}
	}
	return groups, nil
}

// maxGroups bounds the supplementary groups of a command; /etc/group is the sandbox's.
const maxGroups = 1024

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

// handOver lets processes open the pipe that they have as their output by its name (/dev/stdout, /dev/stderr), which the kernel allows by owner
// and mode: those of the command's user, and those of the user that the command itself changes to (su). A name in /proc/PID/fd is out of
// reach for any other user.
func handOver(pipe *os.File, credential *syscall.Credential) error {
	connection, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = connection.Control(func(fd uintptr) {
		if failed = unix.Fchmod(int(fd), 0o622); failed == nil && credential != nil {
			// Without the right to give files away (CAP_CHOWN) the user may still write.
			_ = unix.Fchown(int(fd), int(credential.Uid), int(credential.Gid))
		}
	})
	if err == nil {
		err = failed
	}
	return err
}
