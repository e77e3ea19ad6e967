package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/enginetest"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// programs is the directory with sandbox-keeper and probe.
var programs string

func TestMain(m *testing.M) {
	if site := os.Getenv(serviceVariable); site != "" {
		serve(site)
		return
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	var err error
	if !asked {
		err = flag.Set("test.parallel", "4") // much of the time those that are parallel wait
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if programs, err = os.MkdirTemp("", "oci-test-"); err == nil {
		defer func() { _ = os.RemoveAll(programs) }()
		err = program.Build(context.Background(), programs,
			"sandbox.internal/server/cmd/sandbox-keeper", "sandbox.internal/runtime/engine/enginetest/probe")
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	err = goleak.Find()
	// A keeper that was made to end is waited for: on a busy machine that takes longer than a look.
	for deadline := time.Now().Add(wait.Patience()); err != nil && time.Now().Before(deadline); {
		err = goleak.Find()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// runtimes are those of this machine. crun has to be there.
func runtimes(t testing.TB) []string {
	t.Helper()
	found := []string{"crun"}
	if _, err := exec.LookPath("crun"); err != nil {
		t.Fatalf("these tests need crun: apt-get install crun: %v", err)
	}
	for _, name := range []string{"runc", "runsc"} {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	return found
}

// site is a place for Engines: directories and names that no other test has.
type site struct {
	Directory, RunDirectory, Bridge, Keeper, Runtime string
	Users                                            oci.UserNamespaces
	DiskBytes                                        int64
	KeepFiles                                        bool
	Chain                                            int
	GPUKind, CDIDirectory                            string
}

func newSite(t testing.TB, handler string) site {
	t.Helper()
	var random [4]byte
	_, _ = rand.Read(random[:])
	key := hex.EncodeToString(random[:])
	s := site{
		Directory: filepath.Join(t.TempDir(), "local"), RunDirectory: "/run/oci-test-" + key, Bridge: "ocit" + key,
		Keeper: filepath.Join(programs, "sandbox-keeper"), Runtime: handler,
	}
	t.Cleanup(func() { s.dismantle(t) })
	return s
}

// open opens an Engine that the caller closes.
func (s site) open(ctx context.Context, log io.Writer) (*oci.Engine, error) {
	var specifications []string
	if s.CDIDirectory != "" {
		specifications = []string{s.CDIDirectory}
	}
	return oci.Open(ctx, oci.Options{
		Directory: s.Directory, RunDirectory: s.RunDirectory, Bridge: s.Bridge, Keeper: s.Keeper, Runtime: s.Runtime,
		UserNamespaces: s.Users, DiskBytes: s.DiskBytes, KeepFiles: s.KeepFiles, Chain: s.Chain, GPUKind: s.GPUKind,
		CDIDirectories: specifications, Logger: zerolog.New(log),
	})
}

func (s site) mustOpen(t testing.TB) *oci.Engine {
	t.Helper()
	e, err := s.open(t.Context(), zerolog.NewTestWriter(t))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return e
}

func closeEngine(t testing.TB, e *oci.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestEngine(t *testing.T) {
	for _, handler := range runtimes(t) {
		t.Run(handler, func(t *testing.T) {
			s := newSite(t, handler)
			var traits []enginetest.Trait
			if handler == "runsc" {
				traits = append(traits, enginetest.OwnKernel)
			}
			t.Run("suite", func(t *testing.T) {
				enginetest.Run(t, func(t *testing.T, _ map[string]string) (engine.Engine, enginetest.Janitor) {
					e := s.mustOpen(t)
					return e, janitor{e}
				}, traits...)
			})
			s.checkNothingLeft(t)
		})
	}
}

// janitor does what the Engine interface has no words for.
type janitor struct{ *oci.Engine }

func (j janitor) Volumes(ctx context.Context, label, value string) ([]string, error) {
	return j.Engine.Volumes(ctx, map[string]string{label: value})
}

func (j janitor) RemoveImage(ctx context.Context, ref string) error {
	if err := j.Engine.RemoveImage(ctx, ref); !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return nil
}

// loadProbe puts an image with the probe program into the Engine and returns its id.
func loadProbe(t testing.TB, e *oci.Engine) string {
	t.Helper()
	return loadProbeOf(t, e, "1")
}

// loadProbeOf does so with an image that has another id for each version, and more layers on top.
func loadProbeOf(t testing.TB, e *oci.Engine, version string, more ...v1.Layer) string {
	t.Helper()
	return loadProbeAs(t, e, version, "", more...)
}

// loadProbeAs is loadProbeOf for an image with a user.
func loadProbeAs(t testing.TB, e *oci.Engine, version, user string, more ...v1.Layer) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(programs, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, append([]v1.Layer{
		layerOf(t, tar.Header{Name: "probe", Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}, content),
		layerOf(t, tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}, nil),
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint, config.Config.Labels, config.Config.User = []string{"/probe"}, map[string]string{"version": version}, user
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("oci-test/probe:1")
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, image, &archive); err != nil {
		t.Fatal(err)
	}
	loaded, err := e.LoadImages(t.Context(), &archive)
	if err != nil || len(loaded) != 1 {
		t.Fatalf("load the probe's image: %v, %v", loaded, err)
	}
	return loaded[0].ID
}

func layerOf(t testing.TB, header tar.Header, content []byte) v1.Layer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&header); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// probe is a container that runs the probe program with these words.
func probe(imageID string, words ...string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name: "probe-" + rand.Text(), ImageID: imageID, Entrypoint: append([]string{"/probe"}, words...),
		Network: engine.NetworkNone,
	}
}

func start(t testing.TB, e *oci.Engine, spec engine.ContainerSpec) string {
	t.Helper()
	id, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatalf("Start: %v", err)
	}
	return id
}

func inspect(t testing.TB, e *oci.Engine, id string) engine.Container {
	t.Helper()
	c, err := e.Inspect(t.Context(), id)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return c
}

func waitEnd(t testing.TB, e *oci.Engine, id string) engine.Container {
	t.Helper()
	var c engine.Container
	wait.Until(t, "the container has ended", func() bool {
		c = inspect(t, e, id)
		return c.Status == engine.StatusExited
	})
	return c
}

func removeAll(t testing.TB, e *oci.Engine) {
	t.Helper()
	all, err := e.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if err := e.Remove(t.Context(), c.ID); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
}

// output runs a container to its end and returns what it wrote.
func output(t testing.TB, e *oci.Engine, spec engine.ContainerSpec) (string, engine.Container) {
	t.Helper()
	id := start(t, e, spec)
	ended := waitEnd(t, e, id)
	log, err := e.Logs(t.Context(), id, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	return log, ended
}
