package conformance

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
)

// HostVolume is a directory of this machine at a place in the sandbox.
func HostVolume(path, mountPath string) lifecycle.Volume {
	return lifecycle.Volume{Name: "v" + filepath.Base(mountPath), MountPath: mountPath,
		Host: &lifecycle.HostSource{Path: path}}
}

func testHostVolumes(t *testing.T, b Backend) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allowed, secret := filepath.Join(root, "allowed"), filepath.Join(root, "allowed-not")
	for _, directory := range []string{filepath.Join(allowed, "sub"), secret} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(allowed, "sub", "note"), []byte("from the host\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	s := Start(t, b, Plan{Settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]", allowed)})

	t.Run("used", func(t *testing.T) {
		readOnly, sub := HostVolume(allowed, "/readonly"), HostVolume(allowed, "/sub")
		yes, below := true, "sub"
		readOnly.ReadOnly, sub.SubPath = &yes, &below
		r := s.Idle()
		r.Volumes = []lifecycle.Volume{readOnly, sub}
		inside := s.Enter(t, s.Running(t, r))
		inside.Want(t, "cat /readonly/sub/note /sub/note", "from the host\nfrom the host\n")
		if got := inside.Run(t, "touch /readonly/new"); got.Code == 0 {
			t.Error("a read-only volume was written to")
		}
		inside.Want(t, "echo from inside > /sub/new", "")
		if got, err := os.ReadFile(filepath.Join(allowed, "sub",
			"new")); string(got) != "from inside\n" {
			t.Errorf("the host has %q (%v)", got, err)
		}
	})
	for name, c := range map[string]struct {
		path  string
		words []string
	}{
		"outside":                  {"/etc", []string{"/etc"}},
		"a name that begins alike": {secret, nil},
		"a parent":                 {root, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.Idle()
			r.Volumes = []lifecycle.Volume{HostVolume(c.path, "/data")}
			got := s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, r))
			WantProblem(t, got, 400, "INVALID_REQUEST_BODY",
				append(c.words, "volumes[0]", "host.path", "storage.allowed_host_paths")...)
		})
	}
}

func testSharedVolume(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	claim := b.Claim(t, s)
	r := s.Idle()
	r.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data",
		Pvc: &lifecycle.ClaimSource{ClaimName: claim}}}
	writer := s.Running(t, r)
	s.Enter(t, writer).Want(t, "mkdir /data/sub; echo shared > /data/sub/note", "")
	yes := true
	r.Volumes[0].ReadOnly = &yes
	reader := s.Enter(t, s.Running(t, r))
	reader.Want(t, "cat /data/sub/note", "shared\n")
	if got := reader.Run(t, "echo x > /data/sub/note"); got.Code == 0 {
		t.Error("a read-only volume was written to")
	}
	s.Delete(t, writer)
	s.Await(t, writer, "Terminated")
	reader.Want(t, "cat /data/sub/note", "shared\n")

	sub := "sub"
	r.Volumes[0].SubPath = &sub
	s.Enter(t, s.Running(t, r)).Want(t, "cat /data/note", "shared\n")
}
