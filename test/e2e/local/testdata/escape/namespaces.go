package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// namespaces tries to make and to enter namespaces, and to leave a root directory.
func namespaces() {
	for name, flag := range map[string]int{
		"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "network": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	} {
		attempt("unshare "+name, func() error { return unix.Unshare(flag) })
		if flag == unix.CLONE_NEWTIME {
			continue // clone(2) has no such flag
		}
		attempt("clone "+name, func() error {
			command := exec.Command("/proc/self/exe", "none")
			command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(flag)}
			if err := command.Start(); err != nil {
				return err
			}
			_ = command.Wait()
			return nil
		})
	}
	attempt("clone3", func() error { // as Go has it: any use is refused, so that the C library falls back to clone
		arguments := [11]uint64{0: unix.CLONE_NEWUSER}
		pid, _, err := unix.Syscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&arguments[0])), 1, 0) // a size that no kernel takes
		if err != 0 {
			return err
		}
		return fmt.Errorf("process %d", pid)
	})
	for _, kind := range []string{"mnt", "net", "pid", "user", "ipc", "uts", "cgroup"} {
		attempt("setns "+kind, func() error {
			fd, err := unix.Open("/proc/self/ns/"+kind, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, 0)
		})
	}
	attempt("chroot and back", func() error { // out of a chroot of its own it gets no further than its root
		before, err := os.Stat("/")
		if err != nil {
			return err
		}
		root, err := os.Open("/")
		if err != nil {
			return err
		}
		defer root.Close()
		if err := unix.Chroot("/tmp"); err != nil {
			return err
		}
		for range 64 {
			_ = root.Chdir()
			_ = unix.Chdir("..")
		}
		_ = unix.Chroot(".")
		after, err := os.Stat("/")
		if err != nil || !os.SameFile(before, after) {
			return fmt.Errorf("another root: %v", err)
		}
		return unix.EPERM
	})
}
