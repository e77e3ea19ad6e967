package bundle_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
)

// TestUsers: with a user namespace, the runtime maps the ids and binds a sysfs that is there, and
// sets no parameter of a network that is there.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	in := bundle.Input{
		ID: "0123456789abcdef", Layers: []string{layer(t)}, RootFS: dir, Runtime: runtimeOf(t, "crun"),
		Spec:  engine.ContainerSpec{Entrypoint: []string{"/probe"}, Sysctls: map[string]string{"net.ipv4.tcp_fin_timeout": "30", "kernel.msgmax": "9000"}},
		NetNS: "/proc/1/ns/net", Sys: "/somewhere/sys", EtcDirectory: t.TempDir(), EtcSource: "/somewhere/etc",
		Users: bundle.Users{First: 1 << 30, Count: 1 << 16},
	}
	write(t, filepath.Join(in.EtcDirectory, "hosts"), "")
	if err := bundle.Write(dir, in); err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	content, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		t.Fatal(err)
	}
	want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1 << 30, Size: 1 << 16}}
	if !slices.Equal(spec.Linux.UIDMappings, want) || !slices.Equal(spec.Linux.GIDMappings, want) {
		t.Errorf("users %v, groups %v", spec.Linux.UIDMappings, spec.Linux.GIDMappings)
	}
	if !slices.Contains(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace}) {
		t.Errorf("namespaces %v", spec.Linux.Namespaces)
	}
	if got := spec.Linux.Sysctl; len(got) != 1 || got["kernel.msgmax"] != "9000" {
		t.Errorf("kernel parameters %v", got)
	}
	for target, source := range map[string]string{"/sys": "/somewhere/sys", "/etc/hosts": "/somewhere/etc/hosts"} {
		if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == target && m.Type == "bind" && m.Source == source }) {
			t.Errorf("%s is not mounted from %s: %v", target, source, spec.Mounts)
		}
	}
	for _, user := range []string{"65536", "0:65536"} {
		in.Image.User = user
		if err := bundle.Write(dir, in); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("user %s: %v, want ErrInvalid", user, err)
		}
	}
	in.Image.User, in.Users.Beyond = "70000:80000", []uint32{70000, 80000}
	if err := bundle.Write(dir, in); err != nil {
		t.Error(err)
	}
	if content, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		t.Fatal(err)
	}
	want = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1 << 30, Size: 1<<16 - 2}, {ContainerID: 70000, HostID: 1<<30 + 1<<16 - 2, Size: 1},
		{ContainerID: 80000, HostID: 1<<30 + 1<<16 - 1, Size: 1}}
	if !slices.Equal(spec.Linux.UIDMappings, want) || !slices.Equal(spec.Linux.GIDMappings, want) {
		t.Errorf("users %v, groups %v", spec.Linux.UIDMappings, spec.Linux.GIDMappings)
	}
	in.Users.Beyond = nil
	in.Image.User = "65535:65535"
	if err := bundle.Write(dir, in); err != nil {
		t.Errorf("the last user that there is: %v", err)
	}
}
