package app_test

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/compat"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// guarded is a service for clients of OpenSandbox that has one key, "right", and permits a few
// attempts.
func guarded(t *testing.T, attempts int) http.Handler {
	t.Helper()
	ring := keys.Fixed(keys.Key{Name: "alice", Digest: sha256.Sum256([]byte("right")), Role: lifecycle.RoleUser})
	server, err := api.New(api.Options{Keys: ring, Logger: zerolog.Nop(),
		Limits: api.Limits{Refused: serve.Rate{PerSecond: 1e-6, Burst: attempts}}})
	if err != nil {
		t.Fatal(err)
	}
	return compat.New(compat.Options{Next: server, Admits: api.Admits(server, ring, false), Logger: zerolog.Nop()})
}

func askWithKey(t *testing.T, service http.Handler, path, key string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
	r.Header.Set("OPEN-SANDBOX-API-KEY", key)
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	service.ServeHTTP(answer, r)
	return answer
}

// TestGuessesThroughCompatibility: wrong keys count on every path, and once the attempts are used
// up no answer differs between a right key and a wrong one, not even whether the body is read.
func TestGuessesThroughCompatibility(t *testing.T) {
	for _, path := range []string{"/v1/metrics/events", "/v1/sandboxes"} {
		t.Run(path, func(t *testing.T) {
			const attempts = 3
			service := guarded(t, attempts)
			for range attempts {
				if got := askWithKey(t, service, path, "wrong", strings.NewReader("{}")); got.Code != http.StatusUnauthorized {
					t.Errorf("a wrong key: %d %s", got.Code, got.Body)
				}
			}
			for _, key := range []string{"wrong", "right"} {
				got := askWithKey(t, service, path, key, unread{t})
				if got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" {
					t.Errorf("the %s key after all attempts: %d %s", key, got.Code, got.Body)
				}
			}
		})
	}
}

// unread is a body that nothing reads.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// largeBackend lists sandboxes with a megabyte of metadata each.
type largeBackend struct{ lifecycle.Backend }

func (largeBackend) List(_ context.Context, _ lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	box := lifecycle.Sandbox{ID: "box", Status: lifecycle.Status{State: lifecycle.StateRunning}, Metadata: map[string]string{}}
	for i := range 255 {
		box.Metadata[strconv.Itoa(i)] = strings.Repeat("x", lifecycle.MaxMetadataValue)
	}
	return lifecycle.Listing{Items: slices.Repeat([]lifecycle.Sandbox{box}, page.Size), Total: page.Size}, nil
}

// TestLargePageThroughCompatibility: a page that is too large to be translated is refused, and not
// cut off.
func TestLargePageThroughCompatibility(t *testing.T) {
	ring := keys.Fixed(keys.Key{Name: "alice", Digest: sha256.Sum256([]byte("right")), Role: lifecycle.RoleUser})
	next, err := api.New(api.Options{Backend: largeBackend{}, Keys: ring, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(compat.New(compat.Options{Next: next, Admits: api.Admits(next, ring, false), Logger: zerolog.Nop()}))
	t.Cleanup(service.Close)
	for size, want := range map[string]int{"18": http.StatusBadRequest, "2": http.StatusOK} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.URL+"/v1/sandboxes?pageSize="+size, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("OPEN-SANDBOX-API-KEY", "right")
		response, err := service.Client().Do(request)
		if err != nil {
			t.Errorf("a page of %s: %v", size, err)
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != want || want != http.StatusOK && !strings.Contains(string(body), "query/pageSize: ") {
			t.Errorf("a page of %s: %d %.200s %v, want %d", size, response.StatusCode, body, err, want)
		}
	}
}
