package e2e_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestRequestIDs is about what is outside of the contract; inside of it every answer of every test is checked.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	for _, c := range []struct {
		name, path string
		status     int
		code       string
	}{
		{"a route of the contract", "/health", http.StatusOK, ""},
		{"an error of the contract", "/v1/sandboxes/x", http.StatusUnauthorized, "UNAUTHORIZED"},
		{"no route", "/v1/nothing", http.StatusNotFound, "NOT_FOUND"},
		{"not even a version", "/nothing", http.StatusNotFound, "NOT_FOUND"},
		{"another method", "/v1/sandboxes/x/pause", http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, id := range []string{"mine", strings.Repeat("x", 128)} {
				if got := fetch(t, s.url+c.path, "X-Request-ID", id); got.status != c.status || got.header.Get("X-Request-ID") != id {
					t.Errorf("X-Request-ID %q came back as %q with status %d, want %d", id, got.header.Get("X-Request-ID"), got.status, c.status)
				}
			}
			for _, id := range []string{"", "with a space", strings.Repeat("x", 129), "ü"} {
				got := fetch(t, s.url+c.path, "X-Request-ID", id)
				if fresh := got.header.Get("X-Request-ID"); len(fresh) != len("7c9e6679-7425-40de-944b-e07fc1f90ae7") || fresh == id {
					t.Errorf("X-Request-ID %q: got %q, want a UUID", id, fresh)
				}
			}
			if c.code != "" {
				wantProblem(t, fetch(t, s.url+c.path), c.status, c.code)
			}
		})
	}
}

func TestServiceWithoutAKeyIsOpen(t *testing.T) {
	t.Parallel()
	s := start(t, plan{open: true})
	for _, key := range []string{"", "whatever"} {
		nobody := s.as(t, key)
		nobody.everything(t)
		wantProblem(t, nobody.send(t, http.MethodGet, "/v1/sandboxes/x", ""), 404, "SANDBOX_NOT_FOUND")
	}
	if len(s.log.with(`"level":"warn"`, "server.api_key")) == 0 {
		t.Errorf("no warning says that the service is open:\n%s", s.log.tail(20))
	}
}
