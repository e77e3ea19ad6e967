// Probe reports how its container is confined, for the tests of package bundle.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Report is what a process in a container sees. The tests decode it.
type Report struct {
	Status  map[string]string // lines of /proc/self/status
	Mounts  map[string]string // by mount point: type, options of the mount and of the file system
	Devices map[string]string // by path: type and numbers
	Rlimits map[string][2]uint64
	// Readable are the paths of the arguments that show any content: a byte or an entry.
	Readable []string
	// Writable are the paths of the arguments that can be opened to write.
	Writable []string
	Cgroup   string // /proc/self/cgroup
	Limits   map[string]string
	Env      []string
	Hostname string
	Cwd      string
	UID, GID int
	Groups   []int
	Files    map[string]string // of /etc
	// Opened has for each device that the container must not use how mknod(2) and open(2) of a node
	// of its own ended.
	Opened map[string]string
	// Sysctls of the network.
	Sysctls map[string]string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "wait" {
		fmt.Println("ready")
		for {
			_ = unix.Pause()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(inspect(os.Args[1:])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func inspect(paths []string) Report {
	r := Report{
		Status: fields("/proc/self/status"), Mounts: mounts(), Devices: map[string]string{},
		Rlimits: rlimits(), Limits: map[string]string{}, Files: map[string]string{},
		Opened: map[string]string{}, Sysctls: map[string]string{}, Env: os.Environ(),
		Cgroup: content("/proc/self/cgroup"), UID: os.Getuid(), GID: os.Getgid(),
	}
	r.Hostname, _ = os.Hostname()
	r.Cwd, _ = os.Getwd()
	r.Groups, _ = os.Getgroups()
	_ = filepath.WalkDir("/dev", func(path string, entry os.DirEntry, err error) error {
		var stat unix.Stat_t
		if err == nil && unix.Lstat(path, &stat) == nil && entry.Type()&os.ModeDevice != 0 {
			r.Devices[path] = fmt.Sprintf("%#o %d:%d", stat.Mode, unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
		return nil
	})
	for _, path := range paths {
		if shows(path) {
			r.Readable = append(r.Readable, path)
		}
		if file, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			r.Writable = append(r.Writable, path)
			_ = file.Close()
		}
	}
	for _, path := range []string{
		"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/pids/pids.max",
		"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max",
		"/sys/fs/cgroup/cpu.max",
	} {
		if text := content(path); text != "" {
			r.Limits[path] = text
		}
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		r.Files[name] = content("/etc/" + name)
	}
	for _, name := range []string{"ip_unprivileged_port_start", "ping_group_range"} {
		r.Sysctls[name] = strings.Join(strings.Fields(content("/proc/sys/net/ipv4/"+name)), " ")
	}
	nodes := []struct {
		name         string
		kind         uint32
		major, minor uint32
	}{
		{"disk", unix.S_IFBLK, 254, 0}, {"loop", unix.S_IFBLK, 7, 0}, {"mem", unix.S_IFCHR, 1, 1},
		{"kmsg", unix.S_IFCHR, 1, 11}, {"fuse", unix.S_IFCHR, 10, 229}, {"tun", unix.S_IFCHR, 10, 200},
		{"kvm", unix.S_IFCHR, 10, 232}, {"null", unix.S_IFCHR, 1, 3},
	}
	for _, node := range nodes {
		path := "/node-" + node.name
		err := unix.Mknod(path, node.kind|0o600, int(unix.Mkdev(node.major, node.minor)))
		if err != nil {
			r.Opened[node.name] = "mknod: " + err.Error()
			continue
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		r.Opened[node.name] = "opened"
		if err != nil {
			r.Opened[node.name] = "open: " + err.Error()
		} else {
			_ = unix.Close(fd)
		}
		_ = unix.Unlink(path)
	}
	return r
}

func shows(path string) bool {
	if entries, err := os.ReadDir(path); err == nil {
		return len(entries) > 0
	} else if !errors.Is(err, syscall.ENOTDIR) {
		return false
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	n, _ := file.Read(make([]byte, 1))
	return n > 0
}

func content(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}

func fields(path string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(content(path)) {
		name, value, _ := strings.Cut(line, ":")
		found[name] = strings.TrimSpace(value)
	}
	return found
}

func mounts() map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(content("/proc/self/mountinfo")) {
		left, right, _ := strings.Cut(line, " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		found[before[4]] = after[0] + " " + before[5] + " " + after[2]
	}
	return found
}

func rlimits() map[string][2]uint64 {
	found := map[string][2]uint64{}
	for name, number := range map[string]int{
		"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "core": unix.RLIMIT_CORE,
		"memlock": unix.RLIMIT_MEMLOCK, "stack": unix.RLIMIT_STACK, "msgqueue": unix.RLIMIT_MSGQUEUE,
		"nice": unix.RLIMIT_NICE, "rtprio": unix.RLIMIT_RTPRIO, "sigpending": unix.RLIMIT_SIGPENDING,
	} {
		var limit unix.Rlimit
		if unix.Getrlimit(number, &limit) == nil {
			found[name] = [2]uint64{limit.Cur, limit.Max}
		}
	}
	return found
}
