package bundle_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
)

// TestContainer runs the probe with every runtime.
func TestContainer(t *testing.T) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, runtimeOf(t, name), engine.ContainerSpec{
				Env:       map[string]string{"BOTH": "container", "OWN": "a=b c"},
				Resources: engine.Resources{MemoryBytes: 64 << 20, NanoCPUs: 5e8, PIDs: 50},
				Sysctls:   map[string]string{"kernel.msgmax": "9000"},
			})
			b.in.Image = bundle.Config{
				User: "worker", WorkingDir: "/srv/deep",
				Env: []string{"BOTH=image", "IMAGE=1"},
			}
			shared := t.TempDir()
			write(t, filepath.Join(shared, "file"), "shared")
			b.in.Mounts = []bundle.Mount{
				{Source: shared, Target: "/shared/writable"},
				{Source: shared, Target: "/shared/readonly", ReadOnly: true},
			}
			r := b.report(t, "/shared/writable/file", "/shared/readonly/file")
			if r.UID != 1000 || r.GID != 1001 || !slices.Contains(r.Groups, 50) {
				t.Errorf("user %d, group %d, groups %v", r.UID, r.GID, r.Groups)
			}
			want := []string{
				"BOTH=container", "HOME=/srv/worker", "HOSTNAME=" + b.in.ID[:12], "IMAGE=1", "OWN=a=b c",
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			}
			if !slices.Equal(r.Env, want) {
				t.Errorf("environment %q, want %q", r.Env, want)
			}
			if r.Hostname != b.in.ID[:12] || r.Cwd != "/srv/deep" {
				t.Errorf("host name %q, working directory %q", r.Hostname, r.Cwd)
			}
			if !slices.Equal(r.Readable, []string{"/shared/writable/file", "/shared/readonly/file"}) {
				t.Errorf("readable are %v", r.Readable)
			}
			for point, access := range map[string]string{
				"/shared/writable": "rw", "/shared/readonly": "ro", "/sys": "ro",
			} {
				if _, options, _ := strings.Cut(r.Mounts[point], " "); !strings.HasPrefix(options, access) {
					t.Errorf("%s is mounted as %q, want %s", point, r.Mounts[point], access)
				}
			}
			for name, text := range r.Files {
				if text != "the "+name+" of "+b.in.ID {
					t.Errorf("/etc/%s is %q", name, text)
				}
			}
			if r.Sysctls["ip_unprivileged_port_start"] != "0" || r.Sysctls["ping_group_range"] != "1 0" {
				t.Errorf("kernel parameters %v", r.Sysctls)
			}
			// The container sees its own limits: its cgroup namespace begins at its group.
			for path, want := range map[string]string{
				"/sys/fs/cgroup/memory/memory.limit_in_bytes": "67108864", "/sys/fs/cgroup/pids/pids.max": "50",
				"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000", "/sys/fs/cgroup/memory.max": "67108864",
				"/sys/fs/cgroup/pids.max": "50", "/sys/fs/cgroup/cpu.max": "50000 100000",
			} {
				if got, ok := r.Limits[path]; ok && got != want {
					t.Errorf("%s is %s, want %s", path, got, want)
				}
			}
			if len(r.Limits) != 3 {
				t.Errorf("the container sees the limits %v", r.Limits)
			}
			for line := range strings.Lines(r.Cgroup) {
				line = strings.TrimSpace(line)
				if !strings.HasSuffix(line, ":/") {
					t.Errorf("the container sees that its control group is %q", line)
				}
			}
		})
	}
}

// TestDevices: also with every capability to make nodes, a container opens those of the list only.
func TestDevices(t *testing.T) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, runtimeOf(t, name), engine.ContainerSpec{
				Security: engine.Security{AddCapabilities: []string{"MKNOD"}, SeccompProfile: "unconfined"},
			})
			r := b.report(t)
			for node, how := range r.Opened {
				switch {
				case name == "runc" && node == "tun":
					// runc before 1.2 adds /dev/net/tun to every list, also for Docker. To make a
					// network interface with it takes CAP_NET_ADMIN.
				case node == "null" && how != "opened":
					t.Errorf("a node of /dev/null: %s", how)
				case node != "null" && how != "open: operation not permitted":
					t.Errorf("a node of the host's %s: %s", node, how)
				}
			}
			if len(r.Opened) < 8 {
				t.Errorf("nodes: %v", r.Opened)
			}
		})
	}
}

// TestStartRefuses: the runtime's own message names the program that does not exist.
func TestStartRefuses(t *testing.T) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, runtimeOf(t, name),
				engine.ContainerSpec{Entrypoint: []string{"/no/such/program"}})
			if err := b.start(t); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
				t.Error(err)
			}
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	image := layer(t)
	for name, change := range map[string]func(*bundle.Input){
		"GPUs":             func(in *bundle.Input) { in.Spec.Resources.GPUs = 1 },
		"no network":       func(in *bundle.Input) { in.NetNS = "" },
		"unknown user":     func(in *bundle.Input) { in.Image.User = "stranger" },
		"unknown group":    func(in *bundle.Input) { in.Image.User = "worker:strangers" },
		"large user":       func(in *bundle.Input) { in.Image.User = "4294967296" },
		"missing AppArmor": func(in *bundle.Input) { in.Spec.Security.AppArmorProfile = "no-such-profile" },
		"relative source":  func(in *bundle.Input) { in.Mounts = []bundle.Mount{{Source: "data", Target: "/data"}} },
		"what Check does":  func(in *bundle.Input) { in.Spec.Resources.MemoryBytes = 1024 },
		"hostile /etc/passwd": func(in *bundle.Input) {
			directory := t.TempDir()
			if err := os.MkdirAll(filepath.Join(directory, "etc/passwd"), 0o755); err != nil {
				t.Fatal(err)
			}
			in.Layers = append(in.Layers, directory)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := bundle.Input{
				ID: "0123456789abcdef", Layers: []string{image}, RootFS: image, NetNS: "/proc/self/ns/net",
				Spec: engine.ContainerSpec{Entrypoint: []string{"/probe"}},
			}
			if err := bundle.Write(t.TempDir(), in); err != nil {
				t.Fatalf("without the change: %v", err)
			}
			change(&in)
			directory := t.TempDir()
			if err := bundle.Write(directory, in); !errors.Is(err, engine.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			if _, err := os.Stat(filepath.Join(directory, "config.json")); err == nil {
				t.Error("a refused Write wrote config.json")
			}
		})
	}
}
