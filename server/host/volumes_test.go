package host_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// TestExchangedFolder: a folder that was allowed when the sandbox was asked for is a link to another one later.
func TestExchangedFolder(t *testing.T) {
	for name, c := range map[string]struct{ during, says string }{
		"before the container is made": {callEnsureImage, "storage.allowed_host_paths"},
		"while it is being started":    {callStart, "was exchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			allowed, outside := filepath.Join(root, "data"), filepath.Join(root, "database")
			folder := filepath.Join(allowed, "mine")
			for _, path := range []string{folder, outside} {
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			m := newMachine(t)
			m.options.AllowedHostPaths = []string{allowed}
			m.start()
			during := newGate()
			m.engine.failBefore(c.during, during.fault)
			wanted := spec()
			wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", HostPath: folder}}
			sandbox, err := m.host.Create(context.Background(), wanted, lifecycle.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			during.await(t)
			if err := os.Remove(folder); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, folder); err != nil {
				t.Fatal(err)
			}
			close(during.open)
			status := m.awaitReason(sandbox.ID, lifecycle.StateFailed, lifecycle.ReasonContainerError)
			if !strings.Contains(status.Message, "volumes[0].host.path") || !strings.Contains(status.Message, c.says) {
				t.Errorf("it failed with %q", status.Message)
			}
			m.awaitEmpty()
		})
	}
}

func TestVolumesThatAreNotAllowed(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(root, "everything")); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t).start() // every path is allowed
	wanted := spec()
	wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", HostPath: filepath.Join(root, "everything")}}
	_, err = m.host.Create(context.Background(), wanted, lifecycle.CreateOptions{})
	if kindOf(err) != lifecycle.KindInvalid || !strings.Contains(err.Error(), "volumes[0].host.path") || !strings.Contains(err.Error(), "root") {
		t.Errorf("a link to the host's root: %v", err)
	}
}
