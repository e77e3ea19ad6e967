package bundle_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// sensitive are paths that show or change what is the host's.
var sensitive = []string{
	"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/bus/pci", "/proc/fs", "/proc/interrupts", "/proc/irq",
	"/proc/irq/0", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kallsyms",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/sys/kernel/core_pattern",
	"/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/fs/binfmt_misc", "/proc/sysrq-trigger",
	"/proc/timer_list", "/proc/timer_stats", "/proc/1/mem", "/proc/mtrr", "/sys/devices/virtual/powercap",
	"/sys/firmware", "/sys/kernel/uevent_helper", "/sys/kernel/security", "/sys/fs/bpf", "/sys/kernel/debug",
	"/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent",
	"/sys/fs/cgroup/devices/devices.allow", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/net/tun", "/dev/kvm",
}

// TestLikeDocker runs the probe in a container of Docker's and in one of crun's with our bundle.
// Ours must be confined at least as much; what differs is listed here.
func TestLikeDocker(t *testing.T) {
	image := importImage(t)
	for name, security := range map[string]engine.Security{
		"default":        {},
		"of the service": {DropCapabilities: serviceDrops, NoNewPrivileges: true},
	} {
		t.Run(name, func(t *testing.T) {
			docker := inDocker(t, image, security)
			ours := newBox(t, runtimeOf(t, "crun"), engine.ContainerSpec{
				Security: security, Resources: engine.Resources{MemoryBytes: 64 << 20, PIDs: 512},
			}).report(t, sensitive...)
			compareStatus(t, ours, docker)
			compareMounts(t, ours, docker)
			subset(t, "readable", ours.Readable, docker.Readable)
			subset(t, "writable", ours.Writable, docker.Writable)
			for path, numbers := range ours.Devices {
				if docker.Devices[path] != numbers {
					t.Errorf("device %s is %s, Docker's is %q", path, numbers, docker.Devices[path])
				}
			}
			for node, how := range ours.Opened {
				if how == "opened" && docker.Opened[node] != "opened" {
					t.Errorf("a node of %s is opened; in Docker: %s", node, docker.Opened[node])
				}
			}
			if len(ours.Opened) != len(docker.Opened) || ours.Opened["null"] != docker.Opened["null"] {
				t.Errorf("nodes: %v, Docker's %v", ours.Opened, docker.Opened)
			}
			compareRlimits(t, ours, docker)
			for name, value := range docker.Sysctls {
				if name == "ping_group_range" {
					value = "1 0" // no group: what waits in ping sockets is counted for no container
				}
				if ours.Sysctls[name] != value {
					t.Errorf("kernel parameter %s is %s, Docker's is %s", name, ours.Sysctls[name], value)
				}
			}
		})
	}
}

func compareStatus(t *testing.T, ours, docker report) {
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		our, err := strconv.ParseUint(ours.Status[name], 16, 64)
		their, err2 := strconv.ParseUint(docker.Status[name], 16, 64)
		if err != nil || err2 != nil || our&^their != 0 {
			t.Errorf("%s is %s, Docker's is %s", name, ours.Status[name], docker.Status[name])
		}
		if name == "CapBnd" && our != their {
			t.Errorf("capabilities %x, Docker's are %x", our, their)
		}
	}
	for _, name := range []string{"NoNewPrivs", "Seccomp", "Seccomp_filters"} {
		if ours.Status[name] != docker.Status[name] {
			t.Errorf("%s is %s, Docker's is %s", name, ours.Status[name], docker.Status[name])
		}
	}
}

// remounted are the paths below /proc that crun makes read-only, or hides behind the host's
// /dev/null, without repeating the restrictions of /proc: nothing there can be run or is a device,
// as the kernel allows neither on any mount of proc.
var remounted = []string{
	"/proc/bus", "/proc/fs", "/proc/irq", "/proc/keys", "/proc/sys", "/proc/sysrq-trigger", "/proc/timer_list",
}

// compareMounts: every mount of ours that Docker has, too, has its restrictions. Others of ours:
var onlyOurs = []string{
	"/",
	// Docker's masks of these, which this machine or this Docker lacks.
	"/proc/asound", "/proc/interrupts", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
	"/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
}

func compareMounts(t *testing.T, ours, docker report) {
	for point, mount := range ours.Mounts {
		theirs, ok := docker.Mounts[point]
		if !ok && !slices.Contains(onlyOurs, point) {
			t.Errorf("%s is mounted as %q; not in Docker", point, mount)
		}
		if !ok || point == "/" {
			continue
		}
		for _, restriction := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if restriction != "ro" && slices.Contains(remounted, point) {
				continue
			}
			if has(theirs, restriction) && !has(mount, restriction) {
				t.Errorf("%s is mounted as %q; in Docker as %q", point, mount, theirs)
			}
		}
		if kind, _, _ := strings.Cut(theirs, " "); !strings.HasPrefix(mount, kind+" ") && !strings.HasPrefix(point, "/proc/") &&
			!strings.HasPrefix(point, "/sys/") {
			t.Errorf("%s is mounted as %q; in Docker as %q", point, mount, theirs)
		}
	}
	t.Logf("/sys/fs/cgroup is %q, in Docker %q", ours.Mounts["/sys/fs/cgroup"], docker.Mounts["/sys/fs/cgroup"])
	for point, theirs := range docker.Mounts {
		// Paths that Docker masks or makes read-only are compared by what can be read and written.
		if _, ok := ours.Mounts[point]; !ok && !strings.HasPrefix(point, "/proc/") && !strings.HasPrefix(point, "/sys/") {
			t.Errorf("%s is not mounted; in Docker as %q", point, theirs)
		}
	}
}

// has looks at the options of the mount itself, which are before those of the file system.
func has(mount, option string) bool {
	fields := strings.Fields(mount)
	return slices.Contains(strings.Split(fields[1], ","), option)
}

// compareRlimits: both inherit from what started them, but for the files.
func compareRlimits(t *testing.T, ours, docker report) {
	if files := ours.Rlimits["nofile"]; files[1] > 1<<14 || files[0] > files[1] {
		t.Errorf("open files are limited to %v", files)
	}
	t.Logf("limits %v, Docker's %v", ours.Rlimits, docker.Rlimits)
}

func subset(t *testing.T, what string, ours, docker []string) {
	for _, path := range ours {
		if !slices.Contains(docker, path) {
			t.Errorf("%s is %s; not in Docker", path, what)
		}
	}
	t.Logf("%s: %v, in Docker %v", what, ours, docker)
}

// importImage makes an image of Docker's with the probe.
func importImage(t *testing.T) string {
	t.Helper()
	name := "bundle-test:" + strings.ToLower(rand.Text())
	archive := filepath.Join(t.TempDir(), "image.tar")
	docker(t, "tar", "-C", layer(t), "-cf", archive, ".")
	docker(t, "docker", "import", archive, name)
	t.Cleanup(func() { docker(t, "docker", "rmi", name) })
	return name
}

func inDocker(t *testing.T, image string, security engine.Security) report {
	t.Helper()
	arguments := []string{"run", "--rm", "--network", "none", "--memory", "64m", "--pids-limit", "512"}
	for _, name := range security.DropCapabilities {
		arguments = append(arguments, "--cap-drop", name)
	}
	if security.NoNewPrivileges {
		arguments = append(arguments, "--security-opt", "no-new-privileges")
	}
	arguments = append(append(arguments, image, "/probe"), sensitive...)
	return decode(t, docker(t, "docker", arguments...))
}

func docker(t *testing.T, program string, arguments ...string) []byte {
	t.Helper()
	command := wait.Command(t, program, arguments...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return output
}
