package oci_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
)

// gpuSpecification describes two harmless devices: each is the null device, and what makes network
// interfaces, which no other container may open. Each has a second name, and there is one for both.
const gpuSpecification = `cdiVersion: "0.6.0"
kind: example.org/gpu
containerEdits:
  mounts:
    - {hostPath: %[1]s/library, containerPath: /opt/gpu/library, options: [ro, nosuid, bind]}
devices:
  - &zero
    name: "0"
    containerEdits:
      env: [GPU=zero]
      deviceNodes:
        - {path: /dev/gpu/zero, hostPath: %[1]s/null0}
        - {path: /dev/gpu/tun, hostPath: %[1]s/tun0}
  - name: "1"
    containerEdits:
      env: [GPU=one]
      deviceNodes:
        - {path: /dev/gpu/one, hostPath: %[1]s/null1}
  - {<<: *zero, name: GPU-5e1f}
  - {<<: *zero, name: all}
`

// gpuSite is a site whose machine has the two devices.
func gpuSite(t *testing.T, users oci.UserNamespaces) site {
	t.Helper()
	directory := t.TempDir()
	for name, number := range map[string]uint64{"null0": unix.Mkdev(1, 3), "null1": unix.Mkdev(1, 3), "tun0": unix.Mkdev(10, 200)} {
		path := filepath.Join(directory, name)
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)) //nolint:gosec // it fits
		if err == nil {
			err = os.Chmod(path, 0o666) // whatever the umask is
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"library": "code", "gpu.yaml": fmt.Sprintf(gpuSpecification, directory)} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{directory, filepath.Dir(directory)} { // users of containers reach it
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(t, "crun")
	s.GPUKind, s.CDIDirectory, s.Users = "example.org/gpu", directory, users
	return s
}

// TestGPUs: a container has as many GPUs as it asks for, with what the specification adds, and no
// other container can open them.
func TestGPUs(t *testing.T) {
	for _, users := range []oci.UserNamespaces{oci.UserNamespacesAuto, oci.UserNamespacesOff} {
		t.Run("user namespaces "+string(users), func(t *testing.T) {
			s := gpuSite(t, users)
			e := s.mustOpen(t)
			defer closeEngine(t, e)
			imageID := loadProbe(t, e)
			ask := func(count int, entrypoint ...string) engine.ContainerSpec {
				spec := probe(imageID, entrypoint...)
				spec.Resources.GPUs = count
				return spec
			}
			if text, ended := output(t, e, ask(1, "env", "GPU")); ended.ExitCode != 0 || text != "GPU=zero\n" {
				t.Errorf("the container prints %q of its environment, exit code %d", text, ended.ExitCode)
			}
			if text, ended := output(t, e, ask(1, "cat", "/opt/gpu/library", "/dev/gpu/zero")); text != "code" || ended.ExitCode != 0 {
				t.Errorf("the container reads %q, exit code %d", text, ended.ExitCode)
			}
			// What makes interfaces can be opened, and not read before it has made one. The error
			// is the kernel's, or that of Go's poller, which may get an event before the read.
			if text, _ := output(t, e, ask(1, "cat", "/dev/gpu/tun")); !strings.HasPrefix(text, "read /dev/gpu/tun: ") {
				t.Errorf("the device of the GPU: %q, want that the read fails", text)
			}
			if text, _ := output(t, e, ask(engine.AllGPUs, "env", "GPU")); text != "GPU=one\n" {
				t.Errorf("the environment of the container with all of them is %q", text)
			}
			removeAll(t, e)
		})
	}
}

// TestGPUsBelongToOneContainer: also after a restart of the service, and until the container has
// ended.
func TestGPUsBelongToOneContainer(t *testing.T) {
	s := gpuSite(t, oci.UserNamespacesAuto)
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	ask := func(name string, count int) string {
		spec := probe(imageID, "sleep")
		spec.Name += name
		spec.Resources.GPUs = count
		id, err := e.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	must := func(id string) {
		t.Helper()
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	first, second, third, all := ask("-1", 1), ask("-2", 1), ask("-3", 1), ask("-all", engine.AllGPUs)
	refused := func(id, want string) {
		t.Helper()
		err := e.Start(t.Context(), id)
		wantRefusal(t, err, want)
	}
	refused(ask("-many", 3), "3 are asked for, and 2 of 2 are free")
	must(first)
	refused(all, "2 are asked for, and 1 of 2 are free")
	must(second)
	refused(third, "1 are asked for, and 0 of 2 are free")
	closeEngine(t, e)
	e = s.mustOpen(t)
	defer func() { closeEngine(t, e) }()
	refused(third, "1 are asked for, and 0 of 2 are free")
	if err := e.Stop(t.Context(), first, 0); err != nil {
		t.Fatal(err)
	}
	must(third)
	for _, id := range []string{second, third} {
		if err := e.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	must(all)
	removeAll(t, e)
}

// TestListOfGPUs: those of the specifications, once each, and why one cannot be read.
func TestListOfGPUs(t *testing.T) {
	s := gpuSite(t, oci.UserNamespacesAuto)
	e := s.mustOpen(t)
	kind, names, err := e.GPUs()
	if want := []string{"example.org/gpu=0", "example.org/gpu=1"}; err != nil || kind != s.GPUKind || !slices.Equal(names, want) {
		t.Errorf("the GPUs are %s %q, %v, want %q", kind, names, err, want)
	}
	closeEngine(t, e)
	if err := os.WriteFile(filepath.Join(s.CDIDirectory, "broken.yaml"), []byte("cdiVersion: 7"), 0o644); err != nil {
		t.Fatal(err)
	}
	e = s.mustOpen(t)
	if _, names, err := e.GPUs(); len(names) != 2 || err == nil || !strings.Contains(err.Error(), "broken.yaml") {
		t.Errorf("with a broken specification: %q, %v", names, err)
	}
	closeEngine(t, e)
	s.GPUKind = ""
	e = s.mustOpen(t)
	if kind, names, err := e.GPUs(); kind != "" || len(names) != 0 || err != nil {
		t.Errorf("without a kind: %q %q, %v", kind, names, err)
	}
	closeEngine(t, e)
}

// TestNoGPUs: where the machine has no specification, and where GPUs are switched off, the error
// says so.
func TestNoGPUs(t *testing.T) {
	for kind, want := range map[string]string{"": "local.gpu_kind", "example.org/other": "no CDI specification of example.org/other"} {
		s := gpuSite(t, oci.UserNamespacesAuto)
		s.GPUKind = kind
		e := s.mustOpen(t)
		spec := probe(loadProbe(t, e), "sleep")
		spec.Resources.GPUs = 1
		id, err := e.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, e.Start(t.Context(), id), want)
		removeAll(t, e)
		closeEngine(t, e)
	}
}

func wantRefusal(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), words) {
		t.Errorf("the error is %v, want one with %q", err, words)
	}
}
