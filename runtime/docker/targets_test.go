package docker_test

import (
	"archive/tar"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
)

// TestTargets: a mount goes where its path says, or nowhere, whatever links the image has.
func TestTargets(t *testing.T) {
	e, janitor := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	directory := func(name string) tar.Header { return tar.Header{Name: name + "/", Typeflag: tar.TypeDir} }
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	host := engine.Mount{HostPath: t.TempDir(), Target: "/x/y/z"}
	daemon := engine.Mount{Directory: "docker-test-" + uuid.NewString(), Target: "/opt/sandbox", ReadOnly: true}
	defer func() {
		if err := janitor.RemoveVolume(context.WithoutCancel(t.Context()), daemon.Directory); err != nil {
			t.Error(err)
		}
	}()
	for name, test := range map[string]struct {
		image  []tar.Header
		mounts []engine.Mount
		target string // of the error
		says   string // empty: the container is made
	}{
		"directories":     {[]tar.Header{directory("x"), directory("x/y"), directory("x/y/z")}, []engine.Mount{host, daemon}, "", ""},
		"nothing":         {nil, []engine.Mount{host, daemon}, "", ""},
		"link at the end": {[]tar.Header{directory("x"), directory("x/y"), link("x/y/z", "/opt/sandbox")}, []engine.Mount{daemon, host}, host.Target, `"/x/y/z" of the image to "/opt/sandbox"`},
		"link to dev":     {[]tar.Header{directory("x"), link("x/y", "../dev")}, []engine.Mount{host}, host.Target, `"/x/y" of the image to "/dev/z"`},
		"dangling link":   {[]tar.Header{link("x", "none")}, []engine.Mount{host}, host.Target, `"/x" of the image to "/none/y/z"`},
		"dev is a link":   {[]tar.Header{link("dev", "/etc")}, []engine.Mount{daemon}, "", ""},
		"opt is a link":   {[]tar.Header{link("opt", "/var/opt")}, []engine.Mount{daemon}, "", ""},
		"opt leads to dev": {[]tar.Header{link("opt", "/dev")}, []engine.Mount{daemon}, daemon.Target,
			`to "/dev/sandbox", where nothing else can be mounted`},
		"opt is a link beside a volume": {[]tar.Header{link("opt", "/var/opt")}, []engine.Mount{daemon, host}, host.Target, "lead /opt/sandbox elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			imageID := importEntries(t, janitor.api, test.image...)
			spec := engine.ContainerSpec{Name: "docker-test-" + uuid.NewString(), ImageID: imageID, Entrypoint: []string{"/none"}, Mounts: test.mounts}
			for range 2 { // also when the image is known
				id, err := e.Create(t.Context(), spec)
				if err == nil {
					err = e.Remove(t.Context(), id)
					if test.says != "" || err != nil {
						t.Fatalf("the container is made; %v", err)
					}
					continue
				}
				var target *engine.TargetError
				if test.says == "" || !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), test.says) ||
					test.target != "" && (!errors.As(err, &target) || target.Target != test.target) {
					t.Errorf("%v, want one about %s that says %q", err, test.target, test.says)
				}
				if _, err := e.Inspect(t.Context(), spec.Name); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("the container is left: %v", err)
				}
			}
		})
	}
}
