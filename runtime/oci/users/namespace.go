package users

import (
	"os"
	"syscall"
)

// maker makes a user namespace with these ids, of users and of groups alike.
type maker func(ids []syscall.SysProcIDMap) (*os.File, error)

// idsOf are those of a range, and reserved.
func idsOf(first int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: Size}, {ContainerID: reserved, HostID: 0, Size: 1}}
}
