package app_test

import (
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/compat"
	"sandbox.internal/server/lifecycle"
)

// guarded is a service for clients of OpenSandbox that has one key, "right", and permits a few attempts.
func guarded(t *testing.T, attempts int) http.Handler {
	t.Helper()
	keys := []api.Key{{Name: "alice", Digest: sha256.Sum256([]byte("right")), Role: lifecycle.RoleUser}}
	server, err := api.New(api.Options{Keys: keys, Logger: zerolog.Nop(),
		Limits: api.Limits{Refused: serve.Rate{PerSecond: 1e-6, Burst: attempts}}})
	if err != nil {
		t.Fatal(err)
	}
	return compat.New(compat.Options{Next: server, Admits: api.Admits(server, keys, false), Logger: zerolog.Nop()})
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

// TestGuessesThroughCompatibility: wrong keys count on every path, and once the attempts are used up no answer differs between a right key and a
// wrong one, not even whether the body is read.
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
