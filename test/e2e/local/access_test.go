package local_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/wait"
)

const (
	aliceKey = "the-key-of-alice-in-these-tests"
	bobKey   = "the-key-of-bob-in-these-tests"
)

// startWithUsers starts a service with two keys that are no administrators'. local is for its
// section [local].
func startWithUsers(t *testing.T, local string) *conformance.Service {
	t.Helper()
	m := newMachines()
	m.Local = local
	keys := ""
	for user, key := range map[string]string{"alice": aliceKey, "bob": bobKey} {
		keys += fmt.Sprintf("[[server.keys]]\nname = %q\nrole = \"user\"\nsha256 = \"%x\"\n", user, sha256.Sum256([]byte(key)))
	}
	return conformance.Start(t, onLocal(m), conformance.Plan{Program: true, Server: keys})
}

// startPrivateRegistry returns the name of an image in a registry that wants a user's name and a
// password, and how often it was asked.
func startPrivateRegistry(t *testing.T, user, password string) (image string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	serve := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if name, word, _ := r.BasicAuth(); name != user || word != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	content, err := tarball.ImageFromPath(filepath.Join(localengine.Archives(), "busybox.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/corp/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, content, remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
	return ref.Name(), asked
}

// settle creates a sandbox of the image as the holder of a key, and returns the state that it gets
// to.
func settle(t *testing.T, s *conformance.Service, key, image string, auth *lifecycle.ImageAuth) lifecycle.SandboxStatus {
	t.Helper()
	request := s.Idle()
	request.Image = lifecycle.Image{URI: image, Auth: auth}
	id := s.As(t, key).Create(t, request)
	for _, state := range []lifecycle.SandboxState{"Running", "Failed"} {
		status := s.Get(t, id).Status
		if status.State == state {
			return status
		}
	}
	wait.Until(t, "the sandbox is Running or Failed", func() bool {
		state := s.Get(t, id).Status.State
		return state == "Running" || state == "Failed"
	})
	return s.Get(t, id).Status
}

// TestPrivateImageStaysItsKeys: who knows the name of an image gets it by credentials of their own
// alone, also after a restart and by its id, until an administrator pulls it for all.
func TestPrivateImageStaysItsKeys(t *testing.T) {
	t.Parallel()
	image, _ := startPrivateRegistry(t, "robot", "word")
	registryHost, _, _ := strings.Cut(image, "/")
	s := startWithUsers(t, fmt.Sprintf("insecure_registries = [%q]", registryHost))
	good := &lifecycle.ImageAuth{Username: "robot", Password: "word"}
	want := func(key string, ref string, auth *lifecycle.ImageAuth, state lifecycle.SandboxState) {
		t.Helper()
		if got := settle(t, s, key, ref, auth); got.State != state {
			t.Errorf("%s with %v: %s %s", key, auth != nil, got.State, got.Message)
		}
	}
	want(aliceKey, image, good, "Running")
	want(aliceKey, image, nil, "Running")
	want(bobKey, image, nil, "Failed")
	want(bobKey, image, &lifecycle.ImageAuth{Username: "robot", Password: "wrong"}, "Failed")
	s.Kill()
	s.Boot(t)
	want(bobKey, image, nil, "Failed")
	want(aliceKey, image, nil, "Running")
	want(conformance.AdminKey, image, nil, "Running")
	listed, err := s.API.ListImagesWithResponse(t.Context())
	if err != nil || listed.JSON200 == nil {
		t.Fatal(err)
	}
	for _, stored := range listed.JSON200.Items {
		if len(stored.Names) == 1 && stored.Names[0] == image {
			want(bobKey, stored.ID, nil, "Failed")
		}
	}
	want(bobKey, image, good, "Running")
	want(bobKey, image, nil, "Running")

	other, _ := startPrivateRegistry(t, "robot", "word")
	if got := s.Send(t, http.MethodPost, "/v1/images/pull", fmt.Sprintf(`{"image": {"uri": %q, "auth": {"username": "robot", "password": "word"}}}`, other)); got.Status != http.StatusOK {
		t.Fatalf("an administrator's pull: %s", got)
	}
	want(bobKey, other, nil, "Running")
}

// TestUserNamesNoInternalRegistry: a registry of this machine that is not listed is not asked for a
// user, and what it is refused with is the same for a port where nothing listens. The images of the
// project are asked of no registry.
func TestUserNamesNoInternalRegistry(t *testing.T) {
	t.Parallel()
	image, asked := startPrivateRegistry(t, "robot", "word")
	before := asked.Load()
	s := startWithUsers(t, "")
	for _, ref := range []string{image, "127.0.0.1:1/corp/app:1"} {
		got := settle(t, s, aliceKey, ref, &lifecycle.ImageAuth{Username: "robot", Password: "word"})
		if got.State != "Failed" || !strings.Contains(got.Message, "runtime.internal_registries") {
			t.Errorf("%s: %s %s", ref, got.State, got.Message)
		}
	}
	if n := asked.Load() - before; n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
	if got := settle(t, s, conformance.AdminKey, image, &lifecycle.ImageAuth{Username: "robot", Password: "word"}); got.State != "Running" {
		t.Errorf("an administrator: %s %s", got.State, got.Message)
	}
	for _, ref := range []string{"sandbox/missing:dev", "docker.io/sandbox/missing:dev"} {
		if got := settle(t, s, conformance.AdminKey, ref, nil); got.State != "Failed" || !strings.Contains(got.Message, "no registry is asked") {
			t.Errorf("%s: %s %s", ref, got.State, got.Message)
		}
	}
}
