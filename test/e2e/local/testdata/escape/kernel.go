package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// kernel tries system calls that no namespace confines.
func kernel() {
	call("add_key", unix.SYS_ADD_KEY, pointer("user"), pointer("escape"), pointer("x"), 1, ^uintptr(2))
	call("request_key", unix.SYS_REQUEST_KEY, pointer("user"), pointer("escape"), 0, 0)
	call("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 0)
	call("bpf map", unix.SYS_BPF, 0, pointer(strings.Repeat("\x01\x00\x00\x00", 18)), 72)
	call("bpf program", unix.SYS_BPF, 5, pointer(strings.Repeat("\x00", 72)), 72)
	call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, pointer(strings.Repeat("\x00", 128)), 0, ^uintptr(0), ^uintptr(0), 0)
	call("userfaultfd", unix.SYS_USERFAULTFD, 0)
	call("io_uring_setup", unix.SYS_IO_URING_SETUP, 4, pointer(strings.Repeat("\x00", 120)))
	call("fanotify_init", unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_CONTENT, 0)
	call("init_module", unix.SYS_INIT_MODULE, pointer("x"), 1, pointer(""))
	call("finit_module", unix.SYS_FINIT_MODULE, 0, pointer(""), 0)
	call("delete_module", unix.SYS_DELETE_MODULE, pointer("escape"), 0)
	call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	call("reboot", unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF, 0)
	call("acct", unix.SYS_ACCT, pointer("/tmp/acct"))
	call("sethostname", unix.SYS_SETHOSTNAME, pointer("escape"), 6)
	call("setdomainname", unix.SYS_SETDOMAINNAME, pointer("escape"), 6)
	call("vhangup", unix.SYS_VHANGUP)
	call("syslog", unix.SYS_SYSLOG, 3, pointer(strings.Repeat("\x00", 16)), 16)
	attempt("clock_settime", func() error {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
	})
	attempt("adjtimex", func() error { _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: 10000}); return err })
	attempt("a negative nice value", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -10) })
	attempt("more open files than allowed", func() error {
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30})
	})
	attempt("lock memory", func() error { // what is not bounded is accounted to the sandbox
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			return err
		}
		if limit.Cur > 64<<20 {
			return fmt.Errorf("the limit is %d", limit.Cur)
		}
		return unix.EPERM
	})
	attempt("open_by_handle_at", func() error {
		mount, err := unix.Open("/etc/hosts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(mount)
		// Inode 2 is the root directory of ext4.
		handle := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
		fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY|unix.O_CLOEXEC)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}
