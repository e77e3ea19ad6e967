package images_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// private makes the registry ask for a password.
func (r *testRegistry) private() {
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if name, word, _ := req.BasicAuth(); name == "user" && word == "word" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

var good = &engine.RegistryAuth{Username: "user", Password: "word"}

// withoutConfig keeps the Docker configuration of whoever runs the tests out of them, and returns a
// directory for another one.
func withoutConfig(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, variable := range []string{"HOME", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(variable, home)
	}
	t.Setenv("REGISTRY_AUTH_FILE", "")
	return home
}

func writeConfig(t *testing.T, home string, config any) {
	t.Helper()
	for _, directory := range []string{home, filepath.Join(home, ".docker")} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, "config.json"), must(json.Marshal(config))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCredentialsOfRequest(t *testing.T) {
	home := withoutConfig(t)
	r := newRegistry(t)
	ref := r.push(t, "private:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
	r.private()
	s := open(t, images.Options{})
	for name, auth := range map[string]*engine.RegistryAuth{
		"no credentials":    nil,
		"wrong credentials": {Username: "user", Password: "not-the-word"},
	} {
		_, err := s.Ensure(t.Context(), ref, auth, nil)
		wantImageError(t, err, "401")
		if auth != nil && strings.Contains(err.Error(), auth.Password) {
			t.Errorf("%s: the password is in the message: %v", name, err)
		}
	}
	// Those of a request count alone, even if others are better.
	writeConfig(t, home, map[string]any{"auths": map[string]any{r.host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("user:word"))}}})
	_, err := s.Ensure(t.Context(), ref, &engine.RegistryAuth{Username: "user", Password: "not-the-word"}, nil)
	wantImageError(t, err, "401")
	if _, err := s.Ensure(t.Context(), ref, good, nil); err != nil {
		t.Error(err)
	}
}

// TestOthersCredential: while a caller with the password pulls, one without it is refused.
func TestOthersCredential(t *testing.T) {
	withoutConfig(t)
	r := newRegistry(t)
	layer := randomLayer(t, 100)
	ref := r.push(t, "others:1", newImage(t, v1.Config{}, layer))
	r.private()
	asked, release := r.holdBack(t, must(layer.Digest())(t))
	s := open(t, images.Options{})
	done := make(chan error, 1)
	go func() { _, err := s.Ensure(t.Context(), ref, good, nil); done <- err }()
	wait.For(t, "the request of a layer", asked)
	_, err := s.Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "401")
	release()
	if err := wait.For(t, "the end of the pull", done); err != nil {
		t.Errorf("the one with the password got %v", err)
	}
}

func TestDockerConfig(t *testing.T) {
	for name, configure := range map[string]func(t *testing.T, home, host string){
		"auths": func(t *testing.T, home, host string) {
			auth := base64.StdEncoding.EncodeToString([]byte("user:word"))
			writeConfig(t, home, map[string]any{"auths": map[string]any{host: map[string]string{"auth": auth}}})
		},
		"credential helper": func(t *testing.T, home, host string) {
			program := "#!/bin/sh\nread server\n[ \"$1\" = get ] && [ \"$server\" = " + host + " ] || exit 1\n" +
				`echo '{"ServerURL":"x","Username":"user","Secret":"word"}'` + "\n"
			if err := os.WriteFile(filepath.Join(home, "docker-credential-imagestest"), []byte(program), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", home+":"+os.Getenv("PATH"))
			writeConfig(t, home, map[string]any{"credHelpers": map[string]string{host: "imagestest"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := withoutConfig(t)
			r := newRegistry(t)
			ref := r.push(t, "private:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
			r.private()
			configure(t, home, r.host)
			ensure(t, open(t, images.Options{}), ref)
		})
	}
}

// TestToken: a registry that sends its callers for a token, as Docker Hub does.
func TestToken(t *testing.T) {
	withoutConfig(t)
	r := newRegistry(t)
	ref := r.push(t, "private:1", newImage(t, v1.Config{}, randomLayer(t, 100), randomLayer(t, 200)))
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/token" {
			if name, word, _ := req.BasicAuth(); name != "user" || word != "word" || req.FormValue("scope") != "repository:private:pull" {
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong word"}]}`, http.StatusUnauthorized)
				return true
			}
			_, _ = w.Write([]byte(`{"token":"the-token"}`))
			return true
		}
		if req.Header.Get("Authorization") == "Bearer the-token" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test",scope="repository:private:pull"`, r.host))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	s := open(t, images.Options{})
	_, err := s.Ensure(t.Context(), ref, &engine.RegistryAuth{Username: "user", Password: "not-the-word"}, nil)
	wantImageError(t, err, "wrong word")
	if _, err := s.Ensure(t.Context(), ref, good, nil); err != nil {
		t.Error(err)
	}
}

func TestMirrors(t *testing.T) {
	withoutConfig(t)
	origin, mirror, broken := newRegistry(t), newRegistry(t), newRegistry(t)
	mirrored, missing := randomLayer(t, 100), randomLayer(t, 100)
	first := origin.push(t, "library/first:1", newImage(t, v1.Config{}, mirrored))
	mirror.push(t, "library/first:1", newImage(t, v1.Config{}, mirrored))
	second := origin.push(t, "library/second:1", newImage(t, v1.Config{}, missing))
	broken.intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	var mu sync.Mutex
	var seen []string
	mirror.intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, req.Header.Get("Authorization"))
		return false
	})
	s := open(t, images.Options{Mirrors: map[string][]string{origin.host: {broken.host, mirror.host}}})
	if _, err := s.Ensure(t.Context(), first, good, nil); err != nil {
		t.Fatal(err)
	}
	if n := origin.fetches(must(mirrored.Digest())(t)); n != 0 {
		t.Errorf("the origin was asked %d times for a layer that the mirror has", n)
	}
	if strings.Join(seen, "") != "" {
		t.Error("the credentials for the registry were sent to its mirror")
	}
	ensure(t, s, second)
	if n := origin.fetches(must(missing.Digest())(t)); n != 1 {
		t.Errorf("the origin was asked %d times for a layer that the mirror lacks", n)
	}
	_, err := s.Ensure(t.Context(), origin.host+"/library/third:1", nil, nil)
	wantImageError(t, err, origin.host) // its own words, not those of a mirror
	if list := s.List(); len(list) != 2 || !strings.HasPrefix(list[0].Names[0], origin.host) {
		t.Errorf("images %+v", list)
	}
}

func TestPlainHTTP(t *testing.T) {
	s := open(t, images.Options{Insecure: []string{"registry.test:5000"}})
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:5000": true, "127.1.2.3:1": true, "localhost": true, "localhost:80": true, "[::1]:5000": true,
		"registry.localhost": true, "registry.test:5000": true,
		"registry.test": false, "10.0.0.1:5000": false, "192.168.0.1": false, "localhost.test": false, "127.0.0.1.test": false, "docker.io": false,
	} {
		if got := images.AllowsHTTP(s, host); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
	// Without TLS and permission nothing is sent.
	_, err := s.Ensure(t.Context(), "registry.invalid/image:1", good, nil)
	wantImageError(t, err, "https")
}

func TestTargets(t *testing.T) {
	s := open(t, images.Options{Insecure: []string{"registry.test:5000"}})
	for _, test := range []struct {
		registry, target string
		allowed          bool
	}{
		{"registry.example", "https://storage.example/blob", true},
		{"registry.example", "https://8.8.8.8/blob", true},
		{"registry.example", "http://storage.example/blob", false},
		{"registry.example", "https://169.254.169.254/latest", false},
		{"registry.example", "https://10.0.0.1/", false},
		{"registry.example", "https://100.100.100.200/", false},
		{"registry.example", "https://0.0.0.0/", false},
		{"registry.example", "https://[::ffff:127.0.0.1]/", false},
		{"registry.example", "https://[fe80::1%25eth0]/", false},
		{"registry.example", "https://[fd00:ec2::254]/", false},
		{"registry.example", "https://localhost/", false},
		{"registry.example", "http://127.0.0.1:9090/", false},
		{"registry.example", "http://admin.localhost:8080/", false},
		{"registry.example", "http://LOCALHOST./", false},
		{"registry.example", "http://registry.test:5000/", false},
		{"registry.test:5000", "https://10.0.0.1/", false},
		{"registry.test:5000", "http://127.0.0.1:5000/", false},
		{"registry.test:5000", "http://registry.test:5000/v2/", true},
		{"127.0.0.1:5000", "http://127.0.0.1:5000/token", true},
		{"127.0.0.1:5000", "http://127.0.0.1:6000/", false},
		{"127.0.0.1:5000", "http://registry.test:5000/token", true},
		{"127.0.0.1:5000", "https://storage.example/blob", false},
		{"10.0.0.1", "https://10.0.0.1/token", true},
		{"10.0.0.1", "https://10.0.0.2/", false},
		{"10.0.0.1", "http://10.0.0.2/", false},
	} {
		err := s.CheckTarget(test.registry, must(url.Parse(test.target))(t))
		if (err == nil) != test.allowed {
			t.Errorf("%s to %s: %v", test.registry, test.target, err)
		}
	}
}

// TestRedirectedLayer: registries keep layers elsewhere, and the credentials stay here.
func TestRedirectedLayer(t *testing.T) {
	withoutConfig(t)
	r := newRegistry(t)
	layer := randomLayer(t, 1000)
	blob := compressed(t, layer)
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "" {
			t.Error("the storage got the registry's credentials")
		}
		_, _ = w.Write(blob)
	}))
	defer storage.Close()
	ref := r.push(t, "away:1", newImage(t, v1.Config{}, layer))
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if name, word, _ := req.BasicAuth(); name != "user" || word != "word" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if strings.HasSuffix(req.URL.Path, must(layer.Digest())(t).String()) {
			http.Redirect(w, req, storage.URL+"/blob", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	_, err := open(t, images.Options{}).Ensure(t.Context(), ref, good, nil)
	wantImageError(t, err, "runtime.internal_registries")
	away := strings.TrimPrefix(storage.URL, "http://")
	if _, err := open(t, images.Options{Internal: []string{away}}).Ensure(t.Context(), ref, good, nil); err != nil {
		t.Error(err)
	}
}
