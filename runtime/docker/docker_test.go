package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEngine(t *testing.T) {
	enginetest.Run(t, func(t *testing.T, labels map[string]string) (engine.Engine, enginetest.Janitor) {
		return openBounded(t, labels), newJanitor(t)
	}, enginetest.KeptAsLayers)
}

// open returns the machine's engine. Without one the test fails: these tests are about nothing
// else.
func open(t *testing.T) *docker.Engine { return openBounded(t, nil) }

// openBounded is open with containers of these labels bounded.
func openBounded(t *testing.T, labels map[string]string) *docker.Engine {
	t.Helper()
	e, err := docker.New(docker.Options{Host: os.Getenv("DOCKER_HOST"), Bounded: labels,
		Logger: zerolog.New(zerolog.NewTestWriter(t))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Info(t.Context()); err != nil {
		t.Fatalf("no Docker Engine to test with; `make engine` finds or installs one: %v", err)
	}
	return e
}

func TestNewRefuses(t *testing.T) {
	for _, host := range []string{"ssh://user@host", "docker.sock", "unix", "tcp://%zz"} {
		if e, err := docker.New(docker.Options{Host: host}); err == nil {
			_ = e.Close()
			t.Errorf("host %q was accepted", host)
		}
	}
}

// TestManyAskAtOnce is for the race detector: the first requests agree on a version of the API.
func TestManyAskAtOnce(t *testing.T) {
	e, err := docker.New(docker.Options{Host: os.Getenv("DOCKER_HOST"), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	group := errgroup.Group{}
	for range 8 {
		group.Go(func() error {
			_, err := e.List(t.Context(), map[string]string{"sandbox.internal/instance": "none"})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestEngineDown(t *testing.T) {
	e, err := docker.New(docker.Options{Host: "unix://" + filepath.Join(t.TempDir(), "no.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Info": func() error { _, err := e.Info(ctx); return err },
		"EnsureImage": func() error {
			_,
				err := e.EnsureImage(ctx, "image", nil, nil)
			return err
		},
		"EnsureDirectory": func() error {
			return e.EnsureDirectory(ctx, "volume", "image", "/path",
				nil)
		},
		"MakeVolume":   func() error { _, err := e.MakeVolume(ctx, "volume", nil); return err },
		"VolumeLabels": func() error { _, err := e.VolumeLabels(ctx, "volume"); return err },
		"Create": func() error {
			_,
				err := e.Create(ctx, engine.ContainerSpec{})
			return err
		},
		"Start":   func() error { return e.Start(ctx, "id") },
		"Freeze":  func() error { return e.Freeze(ctx, "id") },
		"Thaw":    func() error { return e.Thaw(ctx, "id") },
		"Stop":    func() error { return e.Stop(ctx, "id", time.Second) },
		"Remove":  func() error { return e.Remove(ctx, "id") },
		"Inspect": func() error { _, err := e.Inspect(ctx, "id"); return err },
		"List":    func() error { _, err := e.List(ctx, nil); return err },
		"Logs":    func() error { _, err := e.Logs(ctx, "id", 1); return err },
		"TakeSnapshot": func() error {
			_, err := e.TakeSnapshot(ctx, "id", engine.SnapshotOptions{Name: "name"})
			return err
		},
		"ListSnapshots":  func() error { _, err := e.ListSnapshots(ctx); return err },
		"RemoveSnapshot": func() error { return e.RemoveSnapshot(ctx, "name") },
		"ExportSnapshot": func() error { _, err := e.ExportSnapshot(ctx, "name", "ref"); return err },
		"Rollback":       func() error { return e.Rollback(ctx, "id", "name") },
		"OpenLog": func() error {
			_,
				err := e.OpenLog(ctx, "id", engine.LogOptions{})
			return err
		},
		"Watch": func() error {
			return e.Watch(ctx, nil, func() { t.Error("ready") },
				func(engine.Event) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
		})
	}
}

// TestEngineBehindAProxy: what stands before an engine and lets only some requests through may
// refuse those for networks.
func TestEngineBehindAProxy(t *testing.T) {
	var networks atomic.Int64
	var down atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Api-Version", "1.41")
		switch {
		case strings.HasSuffix(r.URL.Path, "/networks/bridge"):
			networks.Add(1)
			w.WriteHeader(http.StatusForbidden)
		case strings.HasSuffix(r.URL.Path, "/info") && down.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(r.URL.Path, "/info"):
			_, _ = io.WriteString(w, `{"ServerVersion": "20.10.0"}`)
		}
	}))
	defer server.Close()
	e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	for range 2 {
		if info, err := e.Info(t.Context()); err != nil || info.Version != "20.10.0" || info.Connected {
			t.Errorf("got %+v, %v", info, err)
		}
	}
	if n := networks.Load(); n != 1 {
		t.Errorf("the default network was asked for %d times, want once", n)
	}
	down.Store(true)
	if _, err := e.Info(t.Context()); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("an engine that is down: %v", err)
	}
}

// janitor does with Docker's own client what the Engine interface has no words for.
type janitor struct{ api *client.Client }

func newJanitor(t *testing.T) janitor {
	t.Helper()
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return janitor{api}
}

func (j janitor) Volumes(ctx context.Context, label, value string) ([]string, error) {
	found, err := j.api.VolumeList(ctx,
		volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", label+"="+value))})
	var names []string
	for _, v := range found.Volumes {
		names = append(names, v.Name)
	}
	return names, err
}

func (j janitor) RemoveVolume(ctx context.Context, name string) error {
	return unlessGone(j.api.VolumeRemove(ctx, name, true))
}

func (j janitor) RemoveImage(ctx context.Context, ref string) error {
	_, err := j.api.ImageRemove(ctx, ref, image.RemoveOptions{Force: true, PruneChildren: true})
	return unlessGone(err)
}

func unlessGone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// importEmpty makes an image with nothing in it, which is removed after the test.
func importEmpty(t *testing.T, api *client.Client) string {
	t.Helper()
	return importEntries(t, api)
}

// importEntries makes an image of directories and symbolic links.
func importEntries(t *testing.T, api *client.Client, entries ...tar.Header) string {
	t.Helper()
	ref := "docker-test-" + uuid.NewString() + ":1"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, entry := range entries {
		entry.Mode = 0o755
		if err := w.WriteHeader(&entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	answer, err := api.ImageImport(t.Context(),
		image.ImportSource{Source: &archive, SourceName: "-"}, ref, image.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	if _, err := io.Copy(io.Discard, answer); err != nil { // it is there when the answer has ended
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (janitor{api}).RemoveImage(context.WithoutCancel(t.Context()), ref); err != nil {
			t.Error(err)
		}
	})
	found, err := api.ImageInspect(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return found.ID
}
