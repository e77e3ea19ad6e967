package enginetest

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// testRegistry is a real registry on 127.0.0.1. It counts what is fetched, can ask for a password
// and can hold back a layer.
type testRegistry struct {
	host  string // host:port
	probe []byte
	open  http.Handler // without password, holding and counting

	mu       sync.Mutex
	username string // empty: no password is asked for
	password string
	fetched  map[string]int           // blob digest -> times
	held     map[string]chan struct{} // blob digest -> closed when it may go
	asked    map[string]chan struct{} // blob digest -> closed when it was asked for
}

func newRegistry(t *testing.T, probe []byte) *testRegistry {
	t.Helper()
	r := &testRegistry{
		probe:   probe,
		open:    registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		fetched: map[string]int{},
		held:    map[string]chan struct{}{},
		asked:   map[string]chan struct{}{},
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// private makes the registry ask for a password from now on.
func (r *testRegistry) private(username, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.username, r.password = username, password
}

// ServeHTTP is the registry as an engine sees it.
func (r *testRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	username, password := r.username, r.password
	r.mu.Unlock()
	if name, word, _ := req.BasicAuth(); username != "" && (name != username || word != password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="enginetest"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
		digest := path.Base(req.URL.Path)
		r.mu.Lock()
		r.fetched[digest]++
		held, asked := r.held[digest], r.asked[digest]
		delete(r.asked, digest)
		r.mu.Unlock()
		if asked != nil {
			close(asked)
		}
		if held != nil {
			select {
			case <-held:
			case <-req.Context().Done():
				return
			}
		}
	}
	r.open.ServeHTTP(w, req)
}

// hold keeps a layer back until release is called; asked closes when a client asks for it.
func (r *testRegistry) hold(t *testing.T, digest string) (asked <-chan struct{}, release func()) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	held, wanted := make(chan struct{}), make(chan struct{})
	r.held[digest], r.asked[digest] = held, wanted
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(release) // a held answer would keep the server from closing
	return wanted, release
}

func (r *testRegistry) fetches(digest string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fetched[digest]
}

// upload puts an image into the registry, past the password.
func (r *testRegistry) upload(t *testing.T, name string, image v1.Image) {
	t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	config, err := image.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	configName, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	r.put(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+configName.String(), "", config)
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			t.Fatal(err)
		}
		blob, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(blob)
		if err != nil {
			t.Fatal(err)
		}
		r.put(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest.String(), "", content)
	}
	manifest, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	mediaType, err := image.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	r.put(t, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, string(mediaType), manifest)
}

func (r *testRegistry) put(t *testing.T, method, target, mediaType string, body []byte) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, target, bytes.NewReader(body))
	request.Header.Set("Content-Type", mediaType)
	answer := httptest.NewRecorder()
	r.open.ServeHTTP(answer, request)
	if answer.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, target, answer.Code, answer.Body)
	}
}
