package conformance

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
)

// keyOperations are the operations on API keys.
var keyOperations = []string{"listKeys", "createKey", "getKey", "deleteKey", "rotateKey"}

// operationsOnKeys are these with a key that the service keeps, or, of the configuration's, cannot
// change.
func operationsOnKeys(name string) []Operation {
	return []Operation{
		{"listKeys", "GET", "/v1/keys", ""},
		{"createKey", "POST", "/v1/keys", `{"name":"another","role":"user"}`},
		{"getKey", "GET", "/v1/keys/" + name, ""},
		{"rotateKey", "POST", "/v1/keys/" + name + "/rotate", `{"graceSeconds":60}`},
		{"deleteKey", "DELETE", "/v1/keys/" + name, ""},
	}
}

// testKeysOfTheService provokes every answer of the operations on API keys. Where the backend has a
// directory of its own, keys are made, used and removed, and outlive a kill.
func testKeysOfTheService(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true, Keys: []config.Key{
		{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
		{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
		{Name: "slow", SHA256: Digest(SlowKey), Role: config.RoleViewer, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
	}})
	operations := operationsOnKeys("user")
	for _, o := range operations {
		WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED", KeyHeader)
		for _, key := range []string{userKey, ViewerKey} {
			WantProblem(t, s.As(t, key).Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "admin")
		}
	}
	RefuseUnknownParameters(t, s, operations)
	WantProblem(t, s.Send(t, http.MethodDelete, "/v1/keys/user", ""), 409, "CONFLICT", "user", "configuration")
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/keys/user/rotate", ""), 409, "CONFLICT", "user", "configuration")
	WantProblem(t, s.Send(t, http.MethodGet, "/v1/keys/nobody", ""), 404, "KEY_NOT_FOUND", "nobody")
	large := `{"name":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range []string{"/v1/keys", "/v1/keys/user/rotate"} {
		WantProblem(t, s.Send(t, http.MethodPost, path, large), 413, "REQUEST_TOO_LARGE", "body")
	}
	list, err := Decode[lifecycle.KeyList](s.Send(t, http.MethodGet, "/v1/keys", ""))
	if err != nil || !slices.ContainsFunc(list.Items, func(k lifecycle.Key) bool { return k.Name == "user" && k.Source == lifecycle.KeySourceConfiguration }) {
		t.Errorf("%+v, %v", list, err)
	}
	s.Send(t, http.MethodGet, "/v1/keys/user", "")

	excused := []string{
		"listKeys 500", "createKey 500", "getKey 500", "rotateKey 500", "deleteKey 500", // a store that fails; the keys themselves are in memory
		"createKey 503", "rotateKey 503", "deleteKey 503", // only while the service stops
	}
	if created := s.Send(t, http.MethodPost, "/v1/keys", `{"name":"ci","role":"user"}`); created.Status == http.StatusNotImplemented {
		WantProblem(t, created, 501, "NOT_IMPLEMENTED", "configuration")
		for _, o := range operationsOnKeys("ci")[3:] {
			WantProblem(t, s.Send(t, o.Method, o.Path, o.Body), 501, "NOT_IMPLEMENTED", "configuration")
		}
		excused = append(excused, "createKey 201", "createKey 409", "rotateKey 200", "rotateKey 404", "deleteKey 204", "deleteKey 404")
	} else {
		useKeptKey(t, s, created)
		excused = append(excused, "createKey 501", "rotateKey 501", "deleteKey 501")
	}
	AskTooOften(t, s, operations)
	for _, pair := range s.Conform.Unseen() {
		if slices.Contains(keyOperations, strings.Fields(pair)[0]) && !slices.Contains(excused, pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
}

// useKeptKey leads a key that the answer has made through its life.
func useKeptKey(t *testing.T, s *Service, created Answer) {
	t.Helper()
	issued, err := Decode[lifecycle.IssuedKey](created)
	if err != nil || created.Status != http.StatusCreated {
		t.Fatalf("%s, %v", created, err)
	}
	id := s.As(t, issued.Secret).Create(t, s.Idle())
	WantProblem(t, s.As(t, userKey).Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""), 403, "FORBIDDEN")
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/keys", `{"name":"ci","role":"user"}`), 409, "CONFLICT", "ci")
	rotated, err := Decode[lifecycle.IssuedKey](s.Send(t, http.MethodPost, "/v1/keys/ci/rotate", `{"graceSeconds":600}`))
	if err != nil || rotated.Key.PreviousSecretExpiresAt == nil || time.Until(*rotated.Key.PreviousSecretExpiresAt) > 10*time.Minute {
		t.Fatalf("%+v, %v", rotated, err)
	}
	s.Kill()
	s.Boot(t)
	for _, secret := range []string{issued.Secret, rotated.Secret} {
		if got := s.As(t, secret).Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""); got.Status != http.StatusOK {
			t.Errorf("after a kill: %s", got)
		}
	}
	if got := s.Send(t, http.MethodDelete, "/v1/keys/ci", ""); got.Status != http.StatusNoContent {
		t.Errorf("%s", got)
	}
	for _, secret := range []string{issued.Secret, rotated.Secret} {
		WantProblem(t, s.As(t, secret).Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""), 401, "UNAUTHORIZED", KeyHeader)
	}
	WantProblem(t, s.Send(t, http.MethodDelete, "/v1/keys/ci", ""), 404, "KEY_NOT_FOUND", "ci")
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/keys/ci/rotate", ""), 404, "KEY_NOT_FOUND", "ci")
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/keys", `{"name":"ci","role":"user"}`), 409, "CONFLICT", "ci", "takeOver")
	s.Delete(t, id) // it has stayed, and is an administrator's to end
}
