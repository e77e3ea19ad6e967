package conformance

import (
	"net/http"
	"strings"
	"testing"
)

// testRequestIDs is about what is outside of the contract; inside of it every answer of every test
// is checked.
func testRequestIDs(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	for _, c := range []struct {
		name, path string
		status     int
		code       string
	}{
		{"a route of the contract", "/health", http.StatusOK, ""},
		{"an error of the contract", "/v1/sandboxes/x", http.StatusUnauthorized, "UNAUTHORIZED"},
		{"no route", "/v1/nothing", http.StatusNotFound, "NOT_FOUND"},
		{"not even a version", "/nothing", http.StatusNotFound, "NOT_FOUND"},
		{"another method", "/v1/sandboxes/x/pause", http.StatusMethodNotAllowed,
			"METHOD_NOT_ALLOWED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, id := range []string{"mine", strings.Repeat("x", 128)} {
				if got := Fetch(t, s.URL+c.path, "X-Request-ID", id); got.Status != c.status ||
					got.Header.Get("X-Request-ID") != id {
					t.Errorf("X-Request-ID %q came back as %q with status %d, want %d", id,
						got.Header.Get("X-Request-ID"), got.Status, c.status)
				}
			}
			for _, id := range []string{"", "with a space", strings.Repeat("x", 129), "ü"} {
				got := Fetch(t, s.URL+c.path, "X-Request-ID", id)
				if fresh := got.Header.Get("X-Request-ID"); len(fresh) != len("7c9e6679-7425-40de-944b-e07fc1f90ae7") || fresh == id {
					t.Errorf("X-Request-ID %q: got %q, want a UUID", id, fresh)
				}
			}
			if c.code != "" {
				WantProblem(t, Fetch(t, s.URL+c.path), c.status, c.code)
			}
		})
	}
}

func testServiceWithoutAKeyIsOpen(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Open: true})
	for _, key := range []string{"", "whatever"} {
		client := s.As(t, key)
		client.Everything(t)
		WantProblem(t, client.Send(t, http.MethodGet, "/v1/sandboxes/x", ""), 404,
			"SANDBOX_NOT_FOUND")
	}
	if len(s.Log.With(`"level":"warn"`, "server.api_key")) == 0 {
		t.Errorf("no warning says that the service is open:\n%s", s.Log.Tail(20))
	}
}
