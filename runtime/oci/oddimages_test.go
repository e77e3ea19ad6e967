package oci_test

import (
	"archive/tar"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
)

// TestOddImages: images that Docker runs run, and their users reach the service's directory.
func TestOddImages(t *testing.T) {
	for _, handler := range runtimes(t) {
		t.Run(handler, func(t *testing.T) {
			s := newSite(t, handler)
			e := s.mustOpen(t)
			defer closeEngine(t, e)
			directory := func(name string, mode int64, owner int) v1.Layer {
				return layerOf(t, tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: owner, Gid: owner}, nil)
			}
			link := func(name, target string) v1.Layer {
				return layerOf(t, tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, nil)
			}
			file := func(name, content string, mode int64, owner int) v1.Layer {
				header := tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: mode, Uid: owner, Gid: owner}
				return layerOf(t, header, []byte(content))
			}
			tools := loadProbeOf(t, e, "tools", directory("share/", 0o755, 0), file("share/note", "tools", 0o644, 0))
			if err := e.EnsureDirectory(t.Context(), "tools", tools, "/share", nil); err != nil {
				t.Fatal(err)
			}
			for name, test := range map[string]struct {
				user   string
				layers []v1.Layer
				read   string // beside the directory's note
				want   string
			}{
				"opt is a link to nothing":  {"", []v1.Layer{link("opt", "/var/opt")}, "/var/opt/tools/note", "tools"},
				"opt is a relative link":    {"1000", []v1.Layer{directory("srv/", 0o755, 0), link("opt", "srv/../srv")}, "/srv/tools/note", "tools"},
				"opt is closed":             {"1000", []v1.Layer{directory("opt/", 0o700, 0), file("opt/own", "own", 0o644, 0)}, "/opt/own", "own"},
				"opt leads to what is":      {"1000:1000", []v1.Layer{directory("closed/", 0o700, 0), directory("closed/in/", 0o750, 1), link("opt", "/closed/in")}, "", ""},
				"large user":                {"70000:80000", []v1.Layer{file("mine", "mine", 0o400, 70000)}, "/mine", "mine"},
				"the next id":               {"65536", []v1.Layer{file("mine", "mine", 0o400, 65536)}, "/mine", "mine"},
				"the last id of a range":    {"65535", []v1.Layer{file("mine", "mine", 0o400, 65535)}, "/mine", "mine"},
				"absolute names":            {"", []v1.Layer{file("/abs/../abs/file", "abs", 0o644, 0)}, "/abs/file", "abs"},
				"below a link":              {"", []v1.Layer{link("cur", "/real"), file("cur/file", "real", 0o644, 0)}, "", ""},
				"implied directories":       {"1000", []v1.Layer{directory("home/", 0o755, 0), directory("home/app/", 0o700, 1000), file("home/app/file", "app", 0o600, 1000)}, "/home/app/file", "app"},
				"the network's file a link": {"", []v1.Layer{directory("etc/", 0o755, 0), link("etc/resolv.conf", "../run/resolve/stub.conf")}, "", ""},
			} {
				t.Run(name, func(t *testing.T) {
					spec := probe(loadProbeAs(t, e, name, test.user, test.layers...), "cat", "/opt/tools/note")
					if test.read != "" {
						spec.Entrypoint = append(spec.Entrypoint, test.read)
					}
					spec.Mounts = []engine.Mount{{Directory: "tools", Target: "/opt/tools"}}
					if got, ended := output(t, e, spec); strings.TrimSpace(got) != "tools"+test.want {
						t.Errorf("the container read %q, want %q: %+v", got, "tools"+test.want, ended)
					}
				})
			}
			removeAll(t, e)
		})
	}
}
