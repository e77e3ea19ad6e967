package oci_test

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
)

// TestCreateRefuses: the error names the field, and the name can be used again.
func TestCreateRefuses(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	mount := func(m engine.Mount) func(*engine.ContainerSpec) {
		return func(c *engine.ContainerSpec) { c.Mounts = []engine.Mount{m} }
	}
	for name, test := range map[string]struct {
		change func(*engine.ContainerSpec)
		want   string
	}{
		"name":                {func(c *engine.ContainerSpec) { c.Name = "../x" }, "name: "},
		"long name":           {func(c *engine.ContainerSpec) { c.Name = strings.Repeat("x", 201) }, "name: "},
		"name of a volume":    {mount(engine.Mount{Volume: "..", Target: "/data"}), "mount /data: container refused: volume: "},
		"name of a directory": {mount(engine.Mount{Directory: "a/b", Target: "/data"}), "mount /data: container refused: directory: "},
		"missing directory":   {mount(engine.Mount{Directory: "none", Target: "/data"}), "mount /data: container refused: there is no directory none"},
		"missing host path":   {mount(engine.Mount{HostPath: "/no/such/path", Target: "/data"}), "mount /data: container refused: host path: open /no/such/path"},
		"no source":           {mount(engine.Mount{Target: "/data"}), "mount /data: container refused: source: "},
		"address":             {func(c *engine.ContainerSpec) { c.PublishIP = "localhost" }, "publish address: "},
		"address of IPv6":     {func(c *engine.ContainerSpec) { c.PublishIP = "::1" }, "publish address: "},
		"memory":              {func(c *engine.ContainerSpec) { c.Resources.MemoryBytes = 1 }, "memory: "},
		"runtime":             {func(c *engine.ContainerSpec) { c.Runtime = "no-such-runtime" }, `runtime "no-such-runtime"`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := probe(imageID, "true")
			test.change(&spec)
			for range 2 {
				id, err := e.Create(t.Context(), spec)
				if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("Create: %q, %v; want ErrInvalid with %q", id, err, test.want)
				}
			}
		})
	}
	if all, err := e.List(t.Context(), nil); err != nil || len(all) > 0 {
		t.Errorf("there are %v, %v", all, err)
	}
}

// TestDirectoriesOfEarlierImages: a new release's directory takes the place of those of earlier
// ones, when their containers are gone.
func TestDirectoriesOfEarlierImages(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	var ids []string
	ensure := func(version string) {
		t.Helper()
		ids = append(ids, loadProbeOf(t, e, version))
		if err := e.EnsureDirectory(t.Context(), "of-"+version, ids[len(ids)-1], "/tmp", nil); err != nil {
			t.Fatal(err)
		}
	}
	ensure("1")
	spec := probe(ids[0], "sleep")
	spec.Mounts = []engine.Mount{{Directory: "of-1", Target: "/directory"}}
	user := start(t, e, spec)
	if err := e.EnsureDirectory(t.Context(), "elsewhere", ids[0], "/", nil); err != nil {
		t.Fatal(err)
	}
	ensure("2")
	ensure("3")
	if got, want := strings.Join(entries(t, s.Directory, "directories"), " "), "elsewhere of-1 of-3"; got != want {
		t.Errorf("with a container of the first release there are %s, want %s", got, want)
	}
	if err := e.Remove(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	ensure("4")
	if got, want := strings.Join(entries(t, s.Directory, "directories"), " "), "elsewhere of-4"; got != want {
		t.Errorf("without it there are %s, want %s", got, want)
	}
	closeEngine(t, e)
}
