package app

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/console"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// TestSessionsEndWithTheirKey: a session of the console is worth no more than the secret that began
// it.
func TestSessionsEndWithTheirKey(t *testing.T) {
	records, err := store.Open(t.TempDir(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { records.Close() })
	ring, err := keys.New(t.Context(), keys.Options{
		Configured: []keys.Key{{Name: "server.api_key", Role: lifecycle.RoleAdmin, Digest: sha256.Sum256([]byte("admin"))}}, Store: records, Logger: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	options := api.Options{Keys: ring, Session: console.Caller, Logger: zerolog.Nop()}
	server, err := api.New(options)
	if err != nil {
		t.Fatal(err)
	}
	a := &App{server: server, keys: ring}
	if err := a.addFrontEnds(config.Config{Server: config.Server{Console: true}}, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	service, stop := a.edge(t.Context())
	t.Cleanup(stop)
	ask := func(method, path, body, cookie, token string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		for name, value := range map[string]string{"Content-Type": "application/json", "Cookie": cookie, "X-Sandbox-Console": token} {
			r.Header.Set(name, value)
		}
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, r)
		return answer
	}
	for name, end := range map[string]func(name string) error{
		"removed": func(name string) error { return ring.Delete(t.Context(), name) },
		"rotated": func(name string) error {
			_, _, err := ring.Rotate(t.Context(), name, 0, time.Time{})
			return err
		},
	} {
		_, secret, err := ring.Create(t.Context(), keys.Spec{Name: name, Role: lifecycle.RoleUser})
		if err != nil {
			t.Fatal(err)
		}
		signedIn := ask(http.MethodPost, "/console/session", `{"key": "`+secret+`"}`, "", "")
		var session struct{ Token string }
		if err := json.Unmarshal(signedIn.Body.Bytes(), &session); signedIn.Code != http.StatusCreated || err != nil {
			t.Fatalf("%d %s", signedIn.Code, signedIn.Body)
		}
		look := func() int {
			// An error of the parameters, which are looked at last, says that the request is let
			// in.
			return ask(http.MethodGet, "/console/api/v1/sandboxes?pageSize=0", "", signedIn.Header().Get("Set-Cookie"), session.Token).Code
		}
		if got := look(); got != http.StatusBadRequest {
			t.Errorf("%s: before: %d", name, got)
		}
		if err := end(name); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != http.StatusUnauthorized {
			t.Errorf("%s: afterwards: %d", name, got)
		}
	}
}
