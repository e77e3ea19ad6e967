package docker_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	"github.com/google/uuid"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

// TestHostConfig checks what the suite cannot observe from inside a container.
func TestHostConfig(t *testing.T) {
	e, janitor := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	ctx := t.Context()
	// An empty image is enough for a container that is never started.
	imageID := importEmpty(t, janitor.api)
	id, err := e.Create(ctx, engine.ContainerSpec{
		Name: "docker-test-" + uuid.NewString(), ImageID: imageID, Entrypoint: []string{"/none"},
		Runtime:   "runc", // every engine has it
		Resources: engine.Resources{MemoryBytes: 64 << 20, NanoCPUs: 5e8, PIDs: 20, GPUs: 2},
		Security: engine.Security{
			DropCapabilities: []string{"NET_RAW"}, AddCapabilities: []string{"NET_ADMIN"},
			NoNewPrivileges: true, AppArmorProfile: "docker-default", SeccompProfile: "unconfined",
		},
		Sysctls: map[string]string{"net.ipv6.conf.all.disable_ipv6": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Remove(ctx, id) }()
	found, err := janitor.api.ContainerInspect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	host := found.HostConfig
	if host.Runtime != "runc" {
		t.Errorf("runtime %q", host.Runtime)
	}
	if host.Memory != 64<<20 || host.MemorySwap != host.Memory && host.MemorySwap != -1 {
		// -1: this kernel cannot limit swap
		t.Errorf("memory %d, with swap %d", host.Memory, host.MemorySwap)
	}
	if host.NanoCPUs != 5e8 || host.PidsLimit == nil || *host.PidsLimit != 20 {
		t.Errorf("CPUs %d, processes %v", host.NanoCPUs, host.PidsLimit)
	}
	if gpus := host.DeviceRequests; len(gpus) != 1 || gpus[0].Count != 2 ||
		!slices.EqualFunc(gpus[0].Capabilities, [][]string{{"gpu"}}, slices.Equal) {
		t.Errorf("device requests %+v", gpus)
	}
	t.Run("row lifecycle/configuration/docker.apparmor_profile: reaches the engine",
		func(t *testing.T) {
			if want := []string{"no-new-privileges", "apparmor=docker-default",
				"seccomp=unconfined"}; !slices.Equal(host.SecurityOpt, want) {
				t.Errorf("security options %q, want %q", host.SecurityOpt, want)
			}
		})
	if len(host.CapDrop) != 1 || strings.TrimPrefix(host.CapDrop[0], "CAP_") != "NET_RAW" {
		t.Errorf("dropped capabilities %q", host.CapDrop)
	}
	if len(host.CapAdd) != 1 || strings.TrimPrefix(host.CapAdd[0], "CAP_") != "NET_ADMIN" ||
		host.Sysctls["net.ipv6.conf.all.disable_ipv6"] != "1" {
		t.Errorf("added capabilities %q, kernel parameters %v", host.CapAdd, host.Sysctls)
	}
	if host.LogConfig.Type != "local" || host.LogConfig.Config["max-size"] != "10485760" ||
		host.LogConfig.Config["max-file"] != "2" {
		t.Errorf("log %+v", host.LogConfig)
	}
	if host.Init == nil || *host.Init || host.AutoRemove || host.Privileged ||
		host.IpcMode != container.IPCModePrivate ||
		host.NetworkMode != "bridge" || host.RestartPolicy.Name != container.RestartPolicyDisabled {
		t.Errorf("host config %+v", host)
	}
}

// TestNetworks checks how containers are connected.
func TestNetworks(t *testing.T) {
	e, janitor := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	ctx := t.Context()
	imageID := importEmpty(t, janitor.api)
	for _, tt := range []struct {
		network engine.Network
		join    string
		want    container.NetworkMode
	}{
		{network: engine.NetworkOwn, want: "bridge"}, {network: engine.NetworkHost, want: "host"},
		{network: engine.NetworkNone, want: "none"},
		{join: "another", want: "container:another"},
	} {
		id, err := e.Create(ctx, engine.ContainerSpec{
			Name: "docker-test-" + uuid.NewString(), ImageID: imageID,
			Entrypoint: []string{"/none"}, Network: tt.network, Join: tt.join,
		})
		if err != nil {
			t.Fatal(err)
		}
		found, err := janitor.api.ContainerInspect(ctx, id)
		if err != nil || found.HostConfig.NetworkMode != tt.want {
			t.Errorf("%q, %q became %q, %v; want %q", tt.network, tt.join,
				found.HostConfig.NetworkMode, err, tt.want)
		}
		if err := e.Remove(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

// TestInfoHasProfiles: what the engine says of itself, in whatever form, is what Info says.
func TestInfoHasProfiles(t *testing.T) {
	e, janitor := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	info, err := e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := janitor.api.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(raw.SecurityOptions, " ")
	if info.AppArmor != strings.Contains(said, "apparmor") ||
		info.Seccomp != strings.Contains(said, "seccomp") {
		t.Errorf("AppArmor %t, seccomp %t; the engine says %q", info.AppArmor, info.Seccomp, said)
	}
}

// TestSubPathEscape: on engines that cannot mount a directory of a volume safely by themselves, a
// link out of it is refused.
func TestSubPathEscape(t *testing.T) {
	e, janitor := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	ctx := t.Context()
	imageID := importEmpty(t, janitor.api)
	name := "docker-test-" + uuid.NewString()
	made, err := janitor.api.VolumeCreate(ctx, volume.CreateOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = janitor.RemoveVolume(ctx, name) }()
	for _, link := range []struct{ name, target string }{{"absolute", "/etc"},
		{"relative", "../../../../../../etc"}} {
		if err := os.Symlink(link.target, filepath.Join(made.Mountpoint, link.name)); err != nil {
			t.Fatal(err)
		}
		t.Run(link.name, func(t *testing.T) {
			id, err := e.Create(ctx, engine.ContainerSpec{
				Name: "docker-test-" + uuid.NewString(), ImageID: imageID,
				Entrypoint: []string{"/none"},
				Mounts:     []engine.Mount{{Volume: name, SubPath: link.name, Target: "/data"}},
			})
			if err == nil {
				err = e.Start(ctx, id)
				_ = e.Remove(ctx, id)
			}
			if !errors.Is(err, engine.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

// TestSlowEngine: an engine that accepts and never answers is as good as none.
func TestSlowEngine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "slow.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	e, err := docker.New(docker.Options{Host: "unix://" + socket,
		APITimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	_, err = e.Inspect(t.Context(), "id")
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "100ms") {
		t.Errorf("got %v, want ErrUnavailable after 100ms", err)
	}
}
