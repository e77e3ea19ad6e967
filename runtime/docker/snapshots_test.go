package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// bench is an engine with snapshots, and an image with the suite's probe.
type bench struct {
	*docker.Engine
	api     *client.Client
	imageID string
	labels  map[string]string
}

var buildProbe = sync.OnceValues(func() ([]byte, error) {
	directory, err := os.MkdirTemp("", "docker-test")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	if err := program.Build(context.Background(), directory, "sandbox.internal/runtime/engine/enginetest/probe"); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(directory, "probe"))
})

func newBench(t *testing.T) bench {
	t.Helper()
	labels := map[string]string{"sandbox.internal/docker-test": uuid.NewString()}
	b := bench{Engine: openBounded(t, labels), api: newJanitor(t).api, labels: labels}
	t.Cleanup(func() {
		_, err := b.ListSnapshots(context.WithoutCancel(t.Context())) // and nothing is left of those that were removed in use
		if err := errors.Join(err, b.Close()); err != nil {
			t.Error(err)
		}
	})
	content, err := buildProbe()
	if err != nil {
		t.Fatal(err)
	}
	b.imageID = importFiles(t, b.api, tar.Header{Name: "probe", Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}, content)
	return b
}

// importFiles makes an image with one file, which is removed after the test.
func importFiles(t *testing.T, api *client.Client, header tar.Header, content []byte) string {
	t.Helper()
	ref := "docker-test-" + uuid.NewString() + ":1"
	answer, err := api.ImageImport(t.Context(), image.ImportSource{Source: archiveWith(t, header, content), SourceName: "-"}, ref, image.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	if _, err := io.Copy(io.Discard, answer); err != nil {
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

func archiveWith(t *testing.T, header tar.Header, content []byte) io.Reader {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&header)
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return &archive
}

func (b bench) spec(words ...string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name: "docker-test-" + uuid.NewString(), ImageID: b.imageID, Labels: b.labels, Entrypoint: append([]string{"/probe"}, words...),
	}
}

// run creates and starts a container, and returns its name. It is removed after the test.
func (b bench) run(t *testing.T, spec engine.ContainerSpec) string {
	t.Helper()
	_, err := b.Create(t.Context(), spec)
	if err == nil {
		t.Cleanup(func() {
			if err := b.Remove(context.WithoutCancel(t.Context()), spec.Name); err != nil {
				t.Error(err)
			}
		})
		err = b.Start(t.Context(), spec.Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return spec.Name
}

func (b bench) awaitLog(t *testing.T, name, want string) {
	t.Helper()
	wait.Until(t, "the log has "+want, func() bool {
		log, err := b.Logs(t.Context(), name, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log, want)
	})
}

// take takes a snapshot, which is removed after the test.
func (b bench) take(t *testing.T, name string) engine.Snapshot {
	t.Helper()
	options := engine.SnapshotOptions{Name: "docker-test-" + uuid.NewString(), Labels: b.labels}
	taken, err := b.TakeSnapshot(t.Context(), name, options)
	if err != nil {
		t.Fatal(err)
	}
	b.removeAfter(t, options.Name)
	return taken
}

func (b bench) removeAfter(t *testing.T, snapshot string) {
	t.Cleanup(func() {
		if err := b.RemoveSnapshot(context.WithoutCancel(t.Context()), snapshot); err != nil {
			t.Error(err)
		}
	})
}

func (b bench) status(t *testing.T, name string) engine.Status {
	t.Helper()
	c, err := b.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c.Status
}

// images returns the names of images of this service's, with "" for those that have none.
func (b bench) images(t *testing.T) (names []string) {
	t.Helper()
	list, err := b.api.ImageList(t.Context(), image.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		label := i.Labels["sandbox.internal/docker-snapshot"] + i.Labels["sandbox.internal/docker-test"]
		if strings.Contains(label, b.labels["sandbox.internal/docker-test"]) {
			names = append(names, strings.Join(slices.DeleteFunc(i.RepoTags, func(tag string) bool { return strings.HasPrefix(tag, "<none>") }), " "))
		}
	}
	return names
}

// TestSnapshotHasNoSecrets: neither the configuration of a snapshot's image nor its layers have
// anything of the container's environment, labels, entrypoint and mounts.
func TestSnapshotHasNoSecrets(t *testing.T) {
	b := newBench(t)
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "file"), []byte("hidden-in-a-mount"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := b.spec("tree", "/data")
	spec.Env = map[string]string{"SECRET_VARIABLE": "hidden-in-the-environment"}
	spec.Labels = map[string]string{"sandbox.internal/record": "hidden-in-a-label"}
	for name, value := range b.labels {
		spec.Labels[name] = value
	}
	spec.Mounts = []engine.Mount{{HostPath: directory, Target: "/mounted"}}
	name := b.run(t, spec)
	b.awaitLog(t, name, "made")
	taken := b.take(t, name)
	if names := b.images(t); !slices.Equal(names, []string{"sandbox.invalid/snapshot:" + taken.Name}) {
		t.Errorf("there are the images %q", names)
	}
	saved, err := b.api.ImageSave(t.Context(), []string{"sandbox.invalid/snapshot:" + taken.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	archive, err := io.ReadAll(saved)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hidden-in", "SECRET_VARIABLE", "sandbox.internal/record", `"tree"`} {
		if bytes.Contains(archive, []byte(secret)) {
			t.Errorf("the image has %q", secret)
		}
	}
	if !bytes.Contains(archive, []byte("data/kept/file")) {
		t.Error("the image lacks the files of the container")
	}
	given, err := b.api.ImageInspect(t.Context(), b.imageID)
	if err != nil {
		t.Fatal(err)
	}
	found, err := b.api.ImageInspect(t.Context(), "sandbox.invalid/snapshot:"+taken.Name)
	if err != nil || !slices.Equal(found.Config.Env, given.Config.Env) || len(found.Config.Entrypoint) > 0 {
		t.Errorf("the image of the snapshot has the configuration %+v, %v", found.Config, err)
	}
}

// TestImagesOfSnapshotsAreHidden: no request for an image gets one of a snapshot, by whatever it
// names it, and none is removed as an image.
func TestImagesOfSnapshotsAreHidden(t *testing.T) {
	b := newBench(t)
	taken := b.take(t, b.run(t, b.spec("sleep")))
	found, err := b.api.ImageInspect(t.Context(), "sandbox.invalid/snapshot:"+taken.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"sandbox.invalid/snapshot:" + taken.Name, found.ID, "sandbox.invalid/snapshot:other", "sandbox.invalid/removed:x"} {
		if _, err := b.EnsureImage(t.Context(), ref, nil, nil); !errors.Is(err, engine.ErrImage) {
			t.Errorf("EnsureImage(%s): %v", ref, err)
		}
		if _, err := b.FindImage(t.Context(), ref); !errors.Is(err, engine.ErrImage) {
			t.Errorf("FindImage(%s): %v", ref, err)
		}
		if err := b.RemoveImage(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("RemoveImage(%s): %v", ref, err)
		}
	}
	all, err := b.ListImages(t.Context())
	if err != nil || slices.ContainsFunc(all, func(i engine.Image) bool { return i.ID == found.ID }) {
		t.Errorf("the list of images has that of a snapshot, or %v", err)
	}
	if _, err := b.ExportSnapshot(t.Context(), taken.Name, "sandbox.invalid/snapshot:other"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("export under a name of snapshots: %v", err)
	}
}

// TestSnapshotRemovedInUse: a container that does not run keeps the image of a removed snapshot,
// which goes after the container.
func TestSnapshotRemovedInUse(t *testing.T) {
	b := newBench(t)
	name := b.run(t, b.spec("again", "/starts"))
	b.awaitLog(t, name, "start 1")
	taken := b.take(t, name)
	if err := b.Rollback(t.Context(), name, taken.Name); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveSnapshot(t.Context(), taken.Name); err != nil {
		t.Fatal(err)
	}
	if list, err := b.ListSnapshots(t.Context()); err != nil || slices.ContainsFunc(list, func(s engine.Snapshot) bool { return s.Name == taken.Name }) {
		t.Errorf("the removed snapshot is listed, or %v", err)
	}
	if names := b.images(t); !slices.Equal(names, []string{"sandbox.invalid/removed:" + taken.Name}) {
		t.Errorf("there are the images %q", names)
	}
	b.take(t, name) // of what lies on it
	if err := b.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	b.awaitLog(t, name, "start 2")
	next := b.take(t, name)
	if next.ImageID != b.imageID {
		t.Errorf("a snapshot of a container that was rolled back is of the image %s", next.ImageID)
	}
	if err := b.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ListSnapshots(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := b.images(t); slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "removed") }) {
		t.Errorf("there are the images %q", names)
	}
	spec := b.spec("cat", "/starts")
	spec.Snapshot = next.Name
	b.awaitLog(t, b.run(t, spec), "2")
}

// snapshotter is a program that makes calls of an Engine.
type snapshotter struct {
	directory string
	armed     program.Failpoints
}

func buildSnapshotter(t *testing.T) snapshotter {
	t.Helper()
	directory := t.TempDir()
	armed := program.Failpoints(filepath.Join(directory, "failpoints"))
	if err := program.BuildWithFailpoints(t.Context(), directory, armed, "sandbox.internal/runtime/docker/testdata/snapshotter"); err != nil {
		t.Fatal(err)
	}
	return snapshotter{directory, armed}
}

// kill has the program make a call, and be killed at the failpoint.
func (s snapshotter) kill(t *testing.T, b bench, failpoint, call, name, snapshot string) {
	t.Helper()
	if err := s.armed.Arm(failpoint, 1); err != nil {
		t.Fatal(err)
	}
	labels, err := json.Marshal(b.labels)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	printed, err := exec.CommandContext(ctx, filepath.Join(s.directory, "snapshotter"), string(labels), call, name, snapshot).CombinedOutput()
	if left, counted := s.armed.Left(failpoint); err == nil || counted != nil || left != 0 {
		t.Fatalf("%s: the process was not killed there: %v\n%s", failpoint, errors.Join(err, counted), printed)
	}
}

// TestSnapshotKilled: a service that is killed while it takes a snapshot leaves the container
// running, and either the snapshot or nothing of it, once the next one has listed them.
func TestSnapshotKilled(t *testing.T) {
	b, s := newBench(t), buildSnapshotter(t)
	name := b.run(t, b.spec("journal", "/first", "/second"))
	b.awaitLog(t, name, "journal")
	for failpoint, want := range map[string]int{docker.CommittedFailpoint: 0, docker.KeptFailpoint: 1} {
		snapshot := "docker-test-" + uuid.NewString()
		b.removeAfter(t, snapshot)
		s.kill(t, b, failpoint, "take", name, snapshot)
		if status := b.status(t, name); status != engine.StatusRunning {
			t.Errorf("%s: the container is %s", failpoint, status)
		}
		if names := b.images(t); !slices.Contains(names, "") {
			t.Errorf("%s: there is no image of a commit: %q", failpoint, names)
		}
		list, err := b.ListSnapshots(t.Context())
		if has := slices.ContainsFunc(list, func(s engine.Snapshot) bool { return s.Name == snapshot }); err != nil || has != (want == 1) {
			t.Errorf("%s: the snapshots are %+v, %v", failpoint, list, err)
		}
		if names := b.images(t); len(names) != want || slices.Contains(names, "") {
			t.Errorf("%s: there are the images %q", failpoint, names)
		}
		taken, err := b.TakeSnapshot(t.Context(), name, engine.SnapshotOptions{Name: snapshot, Labels: b.labels})
		if err != nil || taken.Name != snapshot || taken.Bytes == 0 {
			t.Errorf("%s: taken again it is %+v, %v", failpoint, taken, err)
		}
		if err := b.RemoveSnapshot(t.Context(), snapshot); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFreezeDuringSnapshot: a container that is frozen while a snapshot is taken of it stays
// frozen.
func TestFreezeDuringSnapshot(t *testing.T) {
	b := newBench(t)
	name := b.run(t, b.spec("many", "/data", "50", "100000"))
	b.awaitLog(t, name, "made")
	for range 3 {
		var calls sync.WaitGroup
		calls.Go(func() { b.take(t, name) })
		calls.Go(func() {
			if err := b.Freeze(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
		calls.Wait()
		if status := b.status(t, name); status != engine.StatusFrozen {
			t.Errorf("the container is %s", status)
		}
		if err := b.Thaw(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotsOfContainerdStore: an engine that keeps its images in containerd has no snapshots,
// and says why.
func TestSnapshotsOfContainerdStore(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Api-Version", "1.48")
		switch {
		case strings.HasSuffix(r.URL.Path, "/info"):
			_, _ = io.WriteString(w, `{"ServerVersion": "28.0.0", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}`)
		case strings.HasSuffix(r.URL.Path, "/networks/bridge"):
			_, _ = io.WriteString(w, `{}`)
		}
	}))
	defer server.Close()
	e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		t.Errorf("before the engine was asked: %v", err)
	}
	if _, err := e.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, taken := e.TakeSnapshot(t.Context(), "any", engine.SnapshotOptions{Name: "any"})
	_, listed := e.ListSnapshots(t.Context())
	for _, err := range []error{
		e.CheckAbility(engine.AbilitySnapshots), taken, listed, e.Rollback(t.Context(), "any", "any"), e.RemoveSnapshot(t.Context(), "any"),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "overlay2") {
			t.Errorf("%v, want an error that says what is needed", err)
		}
	}
}
