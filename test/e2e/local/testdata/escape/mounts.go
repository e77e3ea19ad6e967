package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts tries to mount, and to change what is mounted.
func mounts() {
	_ = os.MkdirAll("/tmp/mount", 0o755)
	for _, m := range []struct {
		kind, source, options string
		flags                 uintptr
	}{
		{"cgroup", "cgroup", "memory", 0},
		{"cgroup", "cgroup", "rdma", 0},
		{"cgroup", "cgroup", "none,name=escape", 0},
		{"cgroup2", "none", "", 0},
		{"tmpfs", "none", "", 0},
		{"proc", "none", "", 0},
		{"sysfs", "none", "", 0},
		{"devtmpfs", "none", "", 0},
		{"devpts", "none", "", 0},
		{"mqueue", "none", "", 0},
		{"debugfs", "none", "", 0},
		{"tracefs", "none", "", 0},
		{"securityfs", "none", "", 0},
		{"bpf", "none", "", 0},
		{"binfmt_misc", "none", "", 0},
		{"ramfs", "none", "", 0},
		{"overlay", "none", "lowerdir=/etc:/tmp", 0},
		{"ext4", "/dev/sda", "", 0},
		{"", "/etc", "", unix.MS_BIND},
		{"", "/proc", "", unix.MS_BIND | unix.MS_REC},
		{"", "/proc/sys", "", unix.MS_MOVE},
	} {
		name := strings.Join(strings.Fields(fmt.Sprintf("mount %s %s %s", m.kind, m.source, m.options)), " ")
		attempt(name, func() error { return unix.Mount(m.source, "/tmp/mount", m.kind, m.flags, m.options) })
	}
	for _, path := range []string{"/", "/proc/sys", "/sys", "/sys/fs/cgroup", "/opt/sandbox"} {
		attempt("remount "+path+" for writing", func() error { return unix.Mount("none", path, "", unix.MS_REMOUNT|unix.MS_BIND, "") })
		attempt("share "+path, func() error { return unix.Mount("none", path, "", unix.MS_SHARED, "") })
		attempt("unmount "+path, func() error { return unix.Unmount(path, unix.MNT_DETACH) })
	}
	for _, kind := range []string{"tmpfs", "proc", "cgroup", "overlay"} {
		attempt("fsopen "+kind, func() error {
			fd, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	}
	attempt("fspick", func() error { _, err := unix.Fspick(unix.AT_FDCWD, "/proc", 0); return err })
	for _, path := range []string{"/", "/proc", "/etc/hosts"} {
		attempt("open_tree a clone of "+path, func() error {
			_, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			return err
		})
	}
	attempt("move_mount", func() error {
		return unix.MoveMount(unix.AT_FDCWD, "/proc/sys", unix.AT_FDCWD, "/tmp/mount", 0)
	})
	attempt("mount_setattr", func() error {
		return unix.MountSetattr(unix.AT_FDCWD, "/sys", unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	})
	attempt("pivot_root", func() error { return unix.PivotRoot("/tmp", "/tmp/mount") })
	call("swapon", unix.SYS_SWAPON, pointer("/tmp/swap"))
	call("quotactl", unix.SYS_QUOTACTL, 0, pointer("/dev/sda"))
}
