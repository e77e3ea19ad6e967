package images_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a store in a directory of its own, or in the one of o.
func open(t testing.TB, o images.Options) *images.Store {
	t.Helper()
	if o.Directory == "" {
		o.Directory = filepath.Join(t.TempDir(), "images")
	}
	o.Logger = zerolog.New(zerolog.NewTestWriter(t))
	s, err := images.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// testRegistry is a real registry on 127.0.0.1. before, if not nil, sees each request, and answers
// it if it returns true.
type testRegistry struct {
	host    string
	open    http.Handler
	configs sync.Map // digests of configurations, where a test keeps them

	mu      sync.Mutex
	before  func(w http.ResponseWriter, r *http.Request) bool
	fetched map[string]int // base of the path of a GET -> times
}

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	r := &testRegistry{open: registry.New(registry.Logger(log.New(io.Discard, "", 0))), fetched: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

func (r *testRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	before := r.before
	if req.Method == http.MethodGet {
		r.fetched[path.Base(req.URL.Path)]++
	}
	r.mu.Unlock()
	if before == nil || !before(w, req) {
		r.open.ServeHTTP(w, req)
	}
}

func (r *testRegistry) intercept(before func(w http.ResponseWriter, r *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
}

func (r *testRegistry) fetches(digest v1.Hash) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fetched[digest.String()]
}

// push puts an image into the registry, past the interception, and returns its full name.
func (r *testRegistry) push(t testing.TB, name string, image v1.Image) string {
	t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	config := must(image.RawConfigFile())(t)
	r.put(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+must(image.ConfigName())(t).String(), "", config)
	for _, layer := range must(image.Layers())(t) {
		content := compressed(t, layer)
		r.put(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+must(layer.Digest())(t).String(), "", content)
	}
	manifest := must(image.RawManifest())(t)
	r.put(t, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, string(must(image.MediaType())(t)), manifest)
	return r.host + "/" + name
}

func (r *testRegistry) put(t testing.TB, method, target, mediaType string, body []byte) {
	t.Helper()
	request := httptest.NewRequest(method, target, bytes.NewReader(body))
	request.Header.Set("Content-Type", mediaType)
	answer := httptest.NewRecorder()
	r.open.ServeHTTP(answer, request)
	if answer.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, target, answer.Code, answer.Body)
	}
}

// must returns a function that fails the test, for results with an error.
func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func compressed(t testing.TB, layer v1.Layer) []byte {
	t.Helper()
	blob := must(layer.Compressed())(t)
	defer func() { _ = blob.Close() }()
	return must(io.ReadAll(blob))(t)
}

// files makes an archive of regular files.
func files(t testing.TB, contents map[string]string) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(mapKeys(contents)) {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(contents[name])), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(contents[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// newLayer is a layer of regular files, compressed with gzip.
func newLayer(t testing.TB, contents map[string]string) v1.Layer {
	t.Helper()
	archive := files(t, contents)
	return must(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }))(t)
}

// noise is content that does not compress.
func noise(bytes int) string {
	content := make([]byte, bytes)
	_, _ = rand.Read(content)
	return string(content)
}

// randomLayer is like no other.
func randomLayer(t testing.TB, bytes int) v1.Layer {
	t.Helper()
	return newLayer(t, map[string]string{"noise/" + hex.EncodeToString([]byte(noise(4))): noise(bytes)})
}

func newImage(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	image := must(mutate.AppendLayers(empty.Image, layers...))(t)
	file := must(image.ConfigFile())(t).DeepCopy()
	file.OS, file.Config = "linux", config
	return must(mutate.ConfigFile(image, file))(t)
}

// ensure gets an image without credentials.
func ensure(t testing.TB, s *images.Store, ref string) string {
	t.Helper()
	return must(s.Ensure(t.Context(), ref, nil, nil))(t)
}

func wantImageError(t testing.TB, err error, says string) {
	t.Helper()
	if !errors.Is(err, engine.ErrImage) || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want an image error that says %q", err, says)
	}
}

// hold returns the image; it is released with the test.
func hold(t testing.TB, s *images.Store, id string) images.Image {
	t.Helper()
	image, release, err := s.Hold(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return image
}

// content returns the regular files of the image's layers, with the digests of their contents.
func content(t testing.TB, image images.Image) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, directory := range image.Layers {
		err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := os.ReadFile(path)
			found[strings.TrimPrefix(path, directory+"/")] = fmt.Sprintf("%x", sha256.Sum256(file))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// wantOnly fails when the store's directory has more or less than these parts of images. It waits
// for "making" to be empty: the store replaces the records of layers behind its callers, once they
// are safe on the disk.
func wantOnly(t testing.TB, directory string, layers, images, names int) {
	t.Helper()
	wait.Until(t, "nothing is being made", func() bool {
		entries, err := os.ReadDir(filepath.Join(directory, "making"))
		return err == nil && len(entries) == 0
	})
	for name, want := range map[string]int{"layers": layers, "images": images, "names": names} {
		entries, err := os.ReadDir(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != want {
			t.Errorf("%s has %d entries, want %d: %v", name, len(entries), want, entries)
		}
	}
}
