package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/test/wait"
)

// imageRegistry is a real registry on 127.0.0.1 that asks for a password, when it has one.
type imageRegistry struct {
	http.Handler
	password string
	// until it is closed blobs come slowly, and never to their end; nil: they come at once
	gate <-chan struct{}
	host string

	mu      sync.Mutex
	fetched map[string]int // how often each blob was asked for by those who may have it
	left    int            // how many went away before the gate was opened
}

const registryUser = "robot"

func startRegistry(t *testing.T, password string, gate <-chan struct{}) *imageRegistry {
	t.Helper()
	r := &imageRegistry{
		Handler:  registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		password: password, gate: gate, fetched: map[string]int{},
	}
	server := httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// startSlowRegistry returns a registry whose blobs do not come to their end until open is called,
// or the test ends.
func startSlowRegistry(t *testing.T, password string) (r *imageRegistry, open func()) {
	t.Helper()
	gate := make(chan struct{})
	r = startRegistry(t, password, gate)
	open = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open) // before the registry waits for its requests to end
	return r, open
}

// serve is the registry's API for an engine.
func (r *imageRegistry) serve(w http.ResponseWriter, request *http.Request) {
	if user, password, _ := request.BasicAuth(); r.password != "" &&
		(user != registryUser || password != r.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/blobs/") {
		r.mu.Lock()
		r.fetched[path.Base(request.URL.Path)]++
		r.mu.Unlock()
		if r.gate != nil {
			w = &dripping{ResponseWriter: w, registry: r, gate: r.gate,
				left: request.Context().Done()}
		}
	}
	r.ServeHTTP(w, request)
}

// fetches returns how many blobs were asked for, and how many of them more than once.
func (r *imageRegistry) fetches() (blobs, repeated int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, count := range r.fetched {
		if count > 1 {
			repeated++
		}
	}
	return len(r.fetched), repeated
}

// leavers returns how many requests for a blob were given up while the gate was closed.
func (r *imageRegistry) leavers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// dripping is a slow connection: half of what is written passes at once, then some drops, and the
// rest once the gate opens.
type dripping struct {
	http.ResponseWriter
	registry *imageRegistry
	gate     <-chan struct{}
	left     <-chan struct{}
}

func (d *dripping) Write(content []byte) (n int, err error) {
	select {
	case <-d.gate:
		return d.ResponseWriter.Write(content)
	default:
	}
	n, err = d.ResponseWriter.Write(content[:len(content)/2])
	defer func() {
		if err != nil { // whether a write failed or the server noticed first
			d.registry.mu.Lock()
			d.registry.left++
			d.registry.mu.Unlock()
		}
	}()
	for err == nil {
		// what is not flushed now comes later
		_ = http.NewResponseController(d.ResponseWriter).Flush()
		select {
		case <-d.gate:
			more, err := d.ResponseWriter.Write(content[n:])
			return n + more, err
		case <-d.left:
			err = context.Canceled
		case <-time.After(20 * time.Millisecond):
			if drop := len(content) / 200; n+drop < len(content)*9/10 {
				var more int
				more, err = d.ResponseWriter.Write(content[n : n+drop])
				n += more
			}
		}
	}
	return n, err
}

// pushed are the ids of the images that tests have pushed.
var pushed struct {
	mu  sync.Mutex
	ids []string
}

// removePushed removes what services have pulled of the pushed images from the engine. No test has
// a container of them any more: one that exists would leave the image without a name in the engine.
func removePushed() error {
	pushed.mu.Lock()
	defer pushed.mu.Unlock()
	if len(pushed.ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	// With --force the command succeeds for images that no service has pulled.
	out, err := exec.CommandContext(ctx, "docker", append([]string{"image", "rm", "--force"}, pushed.ids...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the images that were pushed: %w: %s", err, out)
	}
	return nil
}

// push puts an image with a single file into the registry and returns its reference. No two images
// are equal. They are removed from the engine when all tests have ended.
func (r *imageRegistry) push(t *testing.T, name, program string) string {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	unique := make([]byte, 4<<20) // takes its time on a slow connection, and cannot be compressed
	_, _ = rand.Read(unique)      // never fails
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"forever", content}, {"unique", unique}} {
		header := &tar.Header{Name: file.name, Mode: 0o755, Size: int64(len(file.content))}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(file.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	id, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	pushed.mu.Lock()
	pushed.ids = append(pushed.ids, id.String())
	pushed.mu.Unlock()
	r.upload(t, name, image, layer)
	return r.host + "/" + name + ":latest"
}

// upload goes past the password.
func (r *imageRegistry) upload(t *testing.T, name string, image v1.Image, layer v1.Layer) {
	t.Helper()
	put := func(method, path, mediaType string, body []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		request := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
		request.Header.Set("Content-Type", mediaType)
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, request)
		if answer.Code != http.StatusCreated {
			t.Fatalf("%s %s: %d %s", method, path, answer.Code, answer.Body)
		}
	}
	blob := func(digest v1.Hash, body []byte, err error) {
		t.Helper()
		put(http.MethodPost, "/v2/"+name+"/blobs/uploads/?digest="+digest.String(), "", body, err)
	}
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	content, err := io.ReadAll(stream)
	blob(digest, content, err)
	if digest, err = image.ConfigName(); err != nil {
		t.Fatal(err)
	}
	content, err = image.RawConfigFile()
	blob(digest, content, err)
	mediaType, err := image.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	content, err = image.RawManifest()
	put(http.MethodPut, "/v2/"+name+"/manifests/latest", string(mediaType), content, err)
}
