package enginetest

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/test/program"
)

// What every image of the suite holds.
const (
	probeDirectory = "/opt/probe"
	probePath      = probeDirectory + "/probe"
	probeNote      = probeDirectory + "/directory/note"
	noteText       = "a note\n"
)

// buildProbe compiles the probe program, static, for the machine that the tests run on.
func buildProbe(t *testing.T) []byte {
	t.Helper()
	directory := t.TempDir()
	if err := program.Build(t.Context(), directory, "sandbox.internal/runtime/engine/enginetest/probe"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(directory, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// push makes a probe image that is like no other and returns its reference.
func (r *testRegistry) push(t *testing.T, name string) string {
	t.Helper()
	ref, _ := r.pushWithLayer(t, name)
	return ref
}

// pushWithLayer also returns the digest of a layer that no other image has.
func (r *testRegistry) pushWithLayer(t *testing.T, name string) (ref, layerDigest string) {
	t.Helper()
	unique := make([]byte, 64<<10)
	_, _ = rand.Read(unique)
	own := layer(t, entry{name: "unique", content: unique})
	image, err := mutate.AppendLayers(empty.Image, own, layer(t,
		entry{name: "opt/", mode: 0o755},
		entry{name: strings.Trim(probeDirectory, "/") + "/", mode: 0o750},
		entry{name: strings.Trim(probePath, "/"), mode: 0o755, content: r.probe},
		entry{name: path.Dir(strings.Trim(probeNote, "/")) + "/", mode: 0o700},
		entry{name: strings.Trim(probeNote, "/"), mode: 0o640, content: []byte(noteText)},
		entry{name: strings.Trim(probeDirectory, "/") + "/link", link: "directory/note"},
		entry{name: "tmp/", mode: 0o777},
		entry{name: "way", link: probeDirectory},
	))
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: rootFS(t, image),
		Config: v1.Config{
			Entrypoint: []string{probePath, "exit"},
			Cmd:        []string{"99"},
			Env:        []string{"FROM_IMAGE=image", "BOTH=image"},
			StopSignal: "SIGUSR1", // Stop sends SIGTERM all the same
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.upload(t, name, image)
	digest, err := own.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return r.host + "/" + name, digest.String()
}

func rootFS(t *testing.T, image v1.Image) v1.RootFS {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS
}

// entry is a file of a layer: a directory when its name ends in a slash, a symbolic link when link
// is set.
type entry struct {
	name    string
	mode    int64
	content []byte
	link    string
}

func layer(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
