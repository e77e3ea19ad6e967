package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// files tries files and control groups that are the host's.
func files() {
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/sysrq",
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/ns_last_pid", "/proc/sys/vm/panic_on_oom", "/proc/sys/vm/drop_caches",
		"/proc/sys/fs/suid_dumpable", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
		"/proc/kmsg", "/proc/acpi/wakeup", "/proc/irq/default_smp_affinity", "/proc/bus/pci", "/proc/scsi/scsi", "/proc/mtrr", "/proc/1/mem",
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/module/kernel/parameters/panic",
		"/dev/kmsg", "/dev/mem", "/dev/port", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop-control", "/dev/fuse", "/dev/net/tun", "/dev/kvm",
		"/opt/sandbox/execd", "/opt/sandbox/execd-init",
	} {
		// A program that runs cannot be written in any case; that its directory is read-only is
		// tried below.
		writable(path, unix.ENOENT, unix.EISDIR, unix.EIO, unix.ETXTBSY)
	}
	// Every file of these trees, but for what is the network namespace's own.
	for _, tree := range []string{"/proc/sys", "/sys"} {
		attempt("write a file of "+tree, func() error {
			last := error(unix.ENOENT)
			err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || !entry.Type().IsRegular() {
					return nil
				}
				fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
				if err != nil {
					last = err
					return nil
				}
				_ = unix.Close(fd)
				return errors.New(path + " can be opened")
			})
			if err != nil {
				return err
			}
			return last
		}, unix.ENOENT)
	}
	for _, path := range []string{
		"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/kmsg", "/proc/acpi", "/proc/scsi", "/proc/interrupts",
		"/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security",
		"/sys/fs/bpf", "/sys/fs/pstore", "/proc/1/environ", "/proc/1/maps", "/proc/1/root", "/proc/1/cwd", "/proc/1/exe",
	} {
		readable(path)
	}
	attempt("create in /opt/sandbox", func() error { return os.WriteFile("/opt/sandbox/new", nil, 0o600) })
	attempt("chmod in /opt/sandbox", func() error { return unix.Chmod("/opt/sandbox/execd", 0o777) })
	attempt("replace /opt/sandbox/execd", func() error { return unix.Rename("/proc/self/exe", "/opt/sandbox/execd") }, unix.EXDEV)
	// Control groups: release_agent and notify_on_release of every hierarchy, a group of its own,
	// and moving a process.
	groups := 0
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil
		}
		// With version 1 the directory of the hierarchies is a small file system of the sandbox's
		// own.
		var stat unix.Statfs_t
		if unix.Statfs(path, &stat) != nil || stat.Type != unix.CGROUP_SUPER_MAGIC && stat.Type != unix.CGROUP2_SUPER_MAGIC {
			return nil
		}
		groups++
		for _, name := range []string{"release_agent", "notify_on_release", "cgroup.procs", "devices.allow", "memory.limit_in_bytes", "memory.max"} {
			if _, err := os.Stat(filepath.Join(path, name)); err == nil {
				writable(filepath.Join(path, name))
			}
		}
		attempt("make a group in "+path, func() error {
			group := filepath.Join(path, "escape")
			if err := unix.Mkdir(group, 0o755); err != nil {
				return err
			}
			return unix.Rmdir(group)
		})
		return nil
	})
	if groups == 0 {
		attempt("look for control groups", func() error { return errors.New("there are none") })
	}
}

// descriptors looks for the host's files by what the sandbox's processes hold.
func descriptors(target Target) {
	for _, path := range []string{
		target.Marker, "/proc/1/root" + target.Marker, "/proc/1/cwd/../../../../../../../.." + target.Marker,
		"/proc/self/root" + target.Marker, "/proc/self/cwd/../../../../../../../.." + target.Marker,
	} {
		attempt("the host's file by "+path, func() error { _, err := os.Stat(path); return err }, unix.ENOENT)
	}
	attempt("the host's file by any open file", func() error {
		found, err := filepath.Glob("/proc/[0-9]*/fd/*")
		if err != nil {
			return err
		}
		for _, fd := range found {
			for _, path := range []string{fd + target.Marker, fd + "/.." + target.Marker, fd + "/../../../../../../../.." + target.Marker} {
				if _, err := os.Stat(path); err == nil {
					return errors.New(path)
				}
			}
		}
		return unix.ENOENT
	}, unix.ENOENT)
	// Its standard output is a FIFO of the host, and it holds the file for its exit status.
	open, err := os.ReadDir("/proc/1/fd")
	if err != nil {
		attempt("list the open files of process 1", func() error { return err })
	}
	for _, entry := range open {
		path := "/proc/1/fd/" + entry.Name()
		writable(path)
		readable(path)
		attempt("read the link "+path, func() error { _, err := os.Readlink(path); return err })
	}
	attempt("inherit a descriptor", func() error {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		for _, entry := range entries {
			link, err := os.Readlink("/proc/self/fd/" + entry.Name())
			if err != nil || entry.Name() <= "2" && len(entry.Name()) == 1 {
				continue // the descriptor of this directory, or a standard one
			}
			// The Go runtime reads the limit of its processors.
			if strings.HasPrefix(link, "/sys/fs/cgroup/cpu") {
				continue
			}
			if !strings.HasPrefix(link, "anon_inode:") && !strings.HasPrefix(link, "/proc/") && !strings.HasPrefix(link, "pipe:") {
				return fmt.Errorf("%s is %s", entry.Name(), link)
			}
		}
		return unix.ENOENT
	}, unix.ENOENT)
}

// writable opens a file to write, and writes nothing.
func writable(path string, expected ...syscall.Errno) {
	attempt("write "+path, func() error {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}, expected...)
}

// readable reads a byte of a file, or an entry of a directory. What is masked is empty.
func readable(path string) {
	attempt("read "+path, func() error {
		if info, err := os.Stat(path); err != nil {
			return err
		} else if info.IsDir() {
			entries, err := os.ReadDir(path)
			if err == nil && len(entries) == 0 {
				return unix.ENOENT
			}
			return err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		n, err := unix.Read(fd, make([]byte, 1))
		if err == nil && n <= 0 {
			return unix.ENOENT
		}
		return err
	}, unix.ENOENT, unix.EIO)
}
