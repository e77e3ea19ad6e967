package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestNetworkModeHostRoute: rule 1 of "Networking rules", the endpoint format http://{domain}/{sandbox_id}/{port}.
func TestNetworkModeHostRoute(t *testing.T) {
	t.Parallel()
	s := start(t, plan{settings: "[docker]\nnetwork_mode = \"host\""})
	port := freeHostPort(t)
	id := portServer(t, &s.client, port)

	endpoint := s.endpoint(t, id, port)
	if want := fmt.Sprintf("%s/%s/%d", s.url, id, port); endpoint.URL != want {
		t.Fatalf("the endpoint is %s, want %s", endpoint.URL, want)
	}
	prefix := fmt.Sprintf("/%s/%d", id, port)
	p := s.below(t, prefix, endpoint.Headers)
	p.ready(t)

	got := p.send(t, http.MethodPut, "/tell/a%2Fb?x=%31", strings.NewReader("body"), keyHeader, adminKey)
	for _, want := range []string{"PUT /tell/a%2Fb?x=%31\n", fmt.Sprintf("Host: 127.0.0.1:%d\n", port), "X-Forwarded-Prefix: " + prefix + "\r\n"} {
		if !strings.Contains(got.body, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got.body, adminKey) || strings.Contains(got.body, endpoint.Headers["X-EXECD-ACCESS-TOKEN"]) {
		t.Errorf("a secret reached the program in the sandbox:\n%s", got)
	}
	if !strings.HasPrefix(got.header.Get("Content-Security-Policy"), "sandbox allow-scripts") {
		t.Errorf("headers %v", got.header)
	}
	if got := p.send(t, http.MethodGet, "/login", nil); got.header.Get("Location") != prefix+"/tell/home" || got.header.Get("Set-Cookie") != "session=1; Path="+prefix {
		t.Errorf("%s %v", got, got.header)
	}
	const size = 16 << 20
	upload := p.send(t, http.MethodPost, "/digest", io.LimitReader(&counting{}, size))
	if want := fmt.Sprintf("%d %s <nil>", size, digestOf(t, io.LimitReader(&counting{}, size))); upload.body != want {
		t.Errorf("the sandbox got %s, want %s", upload, want)
	}
	eventsInStep(t, p)
	messages(t, p.dial(t))
	halfClosed(t, p)
	execdThroughTheService(t, s.below(t, fmt.Sprintf("/%s/%d", id, daemonPort), endpoint.Headers)).want(t, "echo inside", "inside\n")
	// The service's way is there as well.
	messages(t, s.inside(t, id, port).dial(t))

	for name, headers := range map[string]map[string]string{
		"no token": nil, "a wrong token": {"X-EXECD-ACCESS-TOKEN": "guess"}, "the service's key alone": {keyHeader: adminKey},
	} {
		got := s.below(t, prefix, headers).send(t, http.MethodGet, "/tell/x", nil)
		if got.status != http.StatusUnauthorized {
			t.Errorf("%s: %s", name, got)
		}
	}
	unknown := s.below(t, "/11111111-2222-4333-8444-555555555555/80", endpoint.Headers).send(t, http.MethodGet, "/", nil)
	wantProblem(t, unknown, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	s.pause(t, id)
	s.await(t, id, "Paused")
	wantProblem(t, p.send(t, http.MethodGet, "/tell/x", nil), http.StatusConflict, "CONFLICT", "Paused")
	s.resume(t, id)
}

// freeHostPort returns a port that a sandbox on the host's network can listen on: one below those of outgoing connections.
func freeHostPort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(10000)
		if listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}
