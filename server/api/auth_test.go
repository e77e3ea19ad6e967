package api_test

import (
	"net/http"
	"testing"

	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// TestNamesThatLeadHere: a page of a browser can have its own name lead to this machine, and the
// service without keys must not take its requests for those of a user.
func TestNamesThatLeadHere(t *testing.T) {
	alice := key("alice", aliceSecret, lifecycle.RoleUser)
	open, keyed := serveWith(t, api.Options{Backend: newBackend(), Local: true}),
		serveWith(t, api.Options{Backend: newBackend(), Local: true, Keys: keys.Fixed(alice)})
	everywhere := serve(t, newBackend())
	for _, test := range []struct {
		service      *service
		host, origin string
		want         int
	}{
		{open, "evil.example:8080", "", 401},
		{open, "127.0.0.1.evil.example", "", 401},
		{open, "127.0.0.1:9", "", 200},
		{open, "LocalHost:9", "", 200},
		{open, "[::1]:9", "", 200},
		{open, "192.0.2.1", "", 200},
		{everywhere, "sandboxes.example", "", 200},
		{keyed, "sandboxes.example", "", 200},
		{open, "127.0.0.1:9", "http://evil.example", 401},
		{open, "127.0.0.1:9", "null", 401},
		{open, "127.0.0.1:9", "http://127.0.0.1:3000", 200},
		{open, "[::1]:9", "http://[::1]:3000", 200},
		{everywhere, "sandboxes.example", "https://evil.example", 401},
		{everywhere, "sandboxes.example", "https://Sandboxes.example", 200},
		{keyed, "sandboxes.example", "https://evil.example", 200}, // it has the key
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, test.service.url+"/v1/sandboxes", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = test.host
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		r.Header.Set("SERVICE-API-KEY", aliceSecret)
		response, err := test.service.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.want {
			t.Errorf("%s, Origin %s: %d, want %d", test.host, test.origin, response.StatusCode, test.want)
		}
	}
}
