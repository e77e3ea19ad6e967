package images_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/images"
)

const secretWords = "words of a service that only this host reaches"

// internet is a registry under public names, over TLS, and a service on 127.0.0.1 that no registry
// may lead to.
type internet struct {
	registry *testRegistry
	secret   *httptest.Server
	reached  atomic.Int64 // requests at the service
	layer    v1.Layer
	image    v1.Image
	store    *images.Store
}

// ref is the image under a public name.
const publicRef = "registry.example/public:1"

func newInternet(t *testing.T) *internet {
	t.Helper()
	withoutConfig(t)
	n := &internet{registry: newRegistry(t), layer: randomLayer(t, 1000)}
	n.image = newImage(t, v1.Config{}, n.layer)
	n.registry.push(t, "public:1", n.image)
	public := httptest.NewTLSServer(n.registry)
	t.Cleanup(public.Close)
	n.secret = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.reached.Add(1)
		http.Error(w, secretWords, http.StatusForbidden)
	}))
	n.secret.Start()
	t.Cleanup(n.secret.Close)
	n.store = open(t, images.Options{})
	n.store.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasSuffix(address, ".example:443") {
			address = public.Listener.Addr().String()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	return n
}

// redirect answers requests of which the predicate is true with a redirect.
func redirect(target string, when func(r *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if when(r) {
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
}

// TestHostileRedirects: a public registry leads this host to none of its own services, with no
// request, and none of their words is shown.
func TestHostileRedirects(t *testing.T) {
	ping := func(r *http.Request) bool { return r.URL.Path == "/v2/" }
	part := func(words string) func(r *http.Request) bool {
		return func(r *http.Request) bool { return strings.Contains(r.URL.Path, words) }
	}
	for name, when := range map[string]func(n *internet) func(r *http.Request) bool{
		"ping":     func(*internet) func(*http.Request) bool { return ping },
		"manifest": func(*internet) func(*http.Request) bool { return part("/manifests/") },
		"config": func(n *internet) func(*http.Request) bool {
			return part("/blobs/" + must(n.image.ConfigName())(t).String())
		},
		"layer": func(n *internet) func(*http.Request) bool {
			return part("/blobs/" + must(n.layer.Digest())(t).String())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newInternet(t)
			for _, target := range []string{
				n.secret.URL + "/x", "http://localhost:" + portOf(n.secret) + "/x", "https://127.0.0.1:" + portOf(n.secret) + "/x",
			} {
				n.registry.intercept(redirect(target, when(n)))
				_, err := n.store.Ensure(t.Context(), publicRef, nil, nil)
				wantImageError(t, err, "")
				if err != nil && strings.Contains(err.Error(), secretWords) {
					t.Errorf("%s: the error quotes the service: %v", target, err)
				}
			}
			if reached := n.reached.Load(); reached != 0 {
				t.Errorf("the service got %d requests", reached)
			}
		})
	}
	t.Run("token", func(t *testing.T) {
		n := newInternet(t)
		n.registry.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://localhost:%s/token",service="x"`, portOf(n.secret)))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		_, err := n.store.Ensure(t.Context(), publicRef, nil, nil)
		wantImageError(t, err, "internal address")
	})
	t.Run("in a circle", func(t *testing.T) {
		n := newInternet(t)
		n.registry.intercept(redirect("https://registry.example/v2/public/manifests/1", part("/manifests/")))
		_, err := n.store.Ensure(t.Context(), publicRef, nil, nil)
		wantImageError(t, err, "10 redirects")
	})
}

func portOf(s *httptest.Server) string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// TestPublicHosts: a registry keeps its layers and has its tokens at other public hosts.
func TestPublicHosts(t *testing.T) {
	n := newInternet(t)
	digest := must(n.layer.Digest())(t).String()
	n.registry.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Host == "auth.example":
			_, _ = w.Write([]byte(`{"token":"the-token"}`))
		case r.Host == "storage.example":
			if r.Header.Get("Authorization") != "" {
				t.Error("the storage got the registry's token")
			}
			_, _ = w.Write(compressed(t, n.layer))
		case r.Header.Get("Authorization") != "Bearer the-token":
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.example/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case path.Base(r.URL.Path) == digest:
			http.Redirect(w, r, "https://storage.example/blob", http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	if _, err := n.store.Ensure(t.Context(), publicRef, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestQuotes: of what a host answers, errors have the codes and messages that registries define,
// printable and short.
func TestQuotes(t *testing.T) {
	for name, test := range map[string]struct {
		status     int
		body, says string
	}{
		"page":             {http.StatusForbidden, "<html>" + secretWords, "403"},
		"other JSON":       {http.StatusForbidden, `{"error":"` + secretWords + `"}`, "403"},
		"detail":           {http.StatusForbidden, `{"errors":[{"code":"DENIED","message":"no","detail":"` + secretWords + `"}]}`, "DENIED: no"},
		"control bytes":    {http.StatusForbidden, `{"errors":[{"code":"DENIED","message":"a\u001b[31m\u009b\u202e` + "b\"}]}", "DENIED: a [31m  b"},
		"long message":     {http.StatusForbidden, `{"errors":[{"code":"DENIED","message":"` + strings.Repeat("x", 5000) + `"}]}`, "xxx..."},
		"many":             {http.StatusForbidden, `{"errors":[` + strings.Repeat(`{"code":"DENIED","message":"no"},`, 1000) + `{"code":"LAST"}]}`, "DENIED"},
		"page in time":     {http.StatusBadGateway, "<html>" + secretWords, "502"},
		"token that is no": {http.StatusOK, secretWords, "no token"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newInternet(t)
			n.registry.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasPrefix(r.URL.Path, "/v2/") && test.status == http.StatusOK {
					w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.example/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
					return true
				}
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
				return true
			})
			_, err := n.store.Ensure(t.Context(), publicRef, nil, nil)
			wantImageError(t, err, test.says)
			if err != nil && (strings.Contains(err.Error(), secretWords) || len(err.Error()) > 700) {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
		})
	}
}

// TestEndlessAnswers: what is not written to the disk is read up to a bound.
func TestEndlessAnswers(t *testing.T) {
	for name, words := range map[string]string{"ping": "/v2/", "token": "/token", "config": "/blobs/"} {
		t.Run(name, func(t *testing.T) {
			n := newInternet(t)
			var asked atomic.Bool
			var sent atomic.Int64
			n.registry.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case words == "/token" && r.Host != "auth.example":
					w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.example/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
					return true
				case words == "/v2/" && r.URL.Path != words, !strings.Contains(r.URL.Path, words):
					return false
				}
				asked.Store(true)
				for sent.Load() < 64<<20 { // without Content-Length
					written, err := w.Write(make([]byte, 1<<20))
					if sent.Add(int64(written)); err != nil {
						break
					}
				}
				return true
			})
			_, err := n.store.Ensure(t.Context(), publicRef, nil, nil)
			if n, begun := sent.Load(), asked.Load(); !begun || n > 24<<20 {
				t.Errorf("asked for: %v; %d bytes were read; %v", begun, n, err)
			}
		})
	}
}
