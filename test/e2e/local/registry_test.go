package local_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandbox.internal/test/e2e/conformance/localengine"
)

const (
	layerBytes = 128 << 10
	chunkBytes = 16 << 10
	chunkPause = 20 * time.Millisecond // so a layer takes about 160 ms
)

// slowRegistry has images that are all different, each pulled slowly enough to be killed in
// between.
type slowRegistry struct {
	host   string
	base   v1.Image // with a shell
	pushed int
}

func newSlowRegistry(t *testing.T) *slowRegistry {
	t.Helper()
	base, err := tarball.ImageFromPath(filepath.Join(localengine.Archives(), "busybox.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	serve := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = slowly{w}
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return &slowRegistry{host: strings.TrimPrefix(server.URL, "http://"), base: base}
}

// slowly is a connection with little bandwidth.
type slowly struct{ http.ResponseWriter }

func (s slowly) Write(content []byte) (written int, err error) {
	for len(content) > 0 {
		time.Sleep(chunkPause) // the connection is that slow
		n, err := s.ResponseWriter.Write(content[:min(chunkBytes, len(content))])
		written += n
		if err != nil {
			return written, err
		}
		content = content[n:]
	}
	return written, nil
}

// push makes another image and returns its name.
func (r *slowRegistry) push(t *testing.T) string {
	t.Helper()
	r.pushed++
	reference, err := name.ParseReference(fmt.Sprintf("%s/crash/%d:latest", r.host, r.pushed))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := random.Layer(layerBytes, types.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(r.base, layer)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference, image); err != nil {
		t.Fatal(err)
	}
	return reference.Name()
}
