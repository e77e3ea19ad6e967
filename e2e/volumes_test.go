package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/gen/lifecycle"
)

func hostVolume(path, mountPath string) lifecycle.Volume {
	return lifecycle.Volume{Name: "v" + filepath.Base(mountPath), MountPath: mountPath, Host: &lifecycle.HostSource{Path: path}}
}

func TestHostVolumes(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allowed, secret := filepath.Join(root, "allowed"), filepath.Join(root, "allowed-not")
	for _, folder := range []string{filepath.Join(allowed, "sub"), secret} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out": secret, "in": filepath.Join(allowed, "sub")} {
		if err := os.Symlink(target, filepath.Join(allowed, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(allowed, "sub", "note"), []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, plan{settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]", allowed)})

	t.Run("used", func(t *testing.T) {
		readOnly, sub := hostVolume(allowed, "/readonly"), hostVolume(allowed, "/sub")
		yes, below := true, "sub"
		readOnly.ReadOnly, sub.SubPath = &yes, &below
		r := idle()
		r.Volumes = []lifecycle.Volume{readOnly, sub, hostVolume(filepath.Join(allowed, "in"), "/linked")}
		inside := s.enter(t, s.running(t, r))
		inside.want(t, "cat /readonly/sub/note /sub/note /linked/note", "from the host\nfrom the host\nfrom the host\n")
		if got := inside.run(t, "touch /readonly/new"); got.code == 0 {
			t.Error("a read-only volume was written to")
		}
		inside.want(t, "echo from inside > /sub/new", "")
		if got, err := os.ReadFile(filepath.Join(allowed, "sub", "new")); string(got) != "from inside\n" {
			t.Errorf("the host sees %q (%v)", got, err)
		}
	})
	out, missing := "out", "missing"
	for name, c := range map[string]struct {
		path    string
		subPath *string
		words   []string
	}{
		"outside":                  {"/etc", nil, []string{"host.path", "/etc", "storage.allowed_host_paths"}},
		"a name that begins alike": {secret, nil, []string{"host.path", "storage.allowed_host_paths"}},
		"a parent":                 {root, nil, []string{"host.path", "storage.allowed_host_paths"}},
		"a link to the outside":    {filepath.Join(allowed, "out"), nil, []string{"host.path", "storage.allowed_host_paths"}},
		"a sub path that is one":   {allowed, &out, []string{"subPath", "leads out"}},
		"does not exist":           {filepath.Join(allowed, "missing"), nil, []string{"host.path", "does not exist"}},
		"sub path does not exist":  {allowed, &missing, []string{"subPath", "does not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := idle()
			r.Volumes = []lifecycle.Volume{hostVolume(c.path, "/data")}
			r.Volumes[0].SubPath = c.subPath
			got := s.send(t, http.MethodPost, "/v1/sandboxes", encode(t, r))
			wantProblem(t, got, 400, "INVALID_REQUEST_BODY", append(c.words, "volumes[0]")...)
		})
	}
}

func TestSharedVolume(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	claim := s.instance + "-shared"
	t.Cleanup(func() {
		s.deleteAll(t) // a volume in use cannot be removed
		dockerCLI(t, "volume", "rm", claim)
	})
	r := idle()
	r.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", Pvc: &lifecycle.ClaimSource{ClaimName: claim}}}
	writer := s.running(t, r)
	s.enter(t, writer).want(t, "mkdir /data/sub; echo shared > /data/sub/note", "")
	yes := true
	r.Volumes[0].ReadOnly = &yes
	reader := s.enter(t, s.running(t, r))
	reader.want(t, "cat /data/sub/note", "shared\n")
	if got := reader.run(t, "echo x > /data/sub/note"); got.code == 0 {
		t.Error("a read-only volume was written to")
	}
	s.delete(t, writer)
	s.await(t, writer, "Terminated")
	reader.want(t, "cat /data/sub/note", "shared\n")

	sub := "sub"
	r.Volumes[0].SubPath = &sub
	s.enter(t, s.running(t, r)).want(t, "cat /data/note", "shared\n")

	missing := "missing"
	r.Volumes[0].SubPath = &missing
	contains(t, s.await(t, s.create(t, r), "Failed").Status.Message, "sub path", "missing")
	r.Volumes[0].Pvc.ClaimName = s.instance + "-no-such-volume"
	contains(t, s.await(t, s.create(t, r), "Failed").Status.Message, "sub path", "does not exist")
}
