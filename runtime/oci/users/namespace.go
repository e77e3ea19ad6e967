package users

import (
	"os"
	"syscall"
)

// Maker makes a user namespace with these ids, of users and of groups alike.
type Maker func(ids []syscall.SysProcIDMap) (*os.File, error)

// idsOf are those of a range, and Reserved.
func idsOf(first int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: Size}, {ContainerID: Reserved, HostID: 0, Size: 1}}
}
