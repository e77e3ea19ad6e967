package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestNetworkModeHostRoute: rule 1 of "Networking rules", the endpoint format
// http://{domain}/{sandbox_id}/{port}.
func TestNetworkModeHostRoute(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Settings: "[docker]\nnetwork_mode = \"host\""})
	port := freeHostPort(t)
	id := conformance.PortServer(t, &s.Client, port)

	endpoint := s.Endpoint(t, id, port)
	if want := fmt.Sprintf("%s/%s/%d", s.URL, id, port); endpoint.URL != want {
		t.Fatalf("the endpoint is %s, want %s", endpoint.URL, want)
	}
	prefix := fmt.Sprintf("/%s/%d", id, port)
	p := s.Below(t, prefix, endpoint.Headers)
	p.Ready(t)

	got := p.Send(t, http.MethodPut, "/echo/a%2Fb?x=%31", strings.NewReader("body"),
		conformance.KeyHeader, conformance.AdminKey)
	for _, want := range []string{"PUT /echo/a%2Fb?x=%31\n",
		fmt.Sprintf("Host: 127.0.0.1:%d\n", port), "X-Forwarded-Prefix: " + prefix + "\r\n"} {
		if !strings.Contains(got.Body, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got.Body, conformance.AdminKey) ||
		strings.Contains(got.Body, endpoint.Headers["X-EXECD-ACCESS-TOKEN"]) {
		t.Errorf("a secret reached the program in the sandbox:\n%s", got)
	}
	if !strings.HasPrefix(got.Header.Get("Content-Security-Policy"), "sandbox allow-scripts") {
		t.Errorf("headers %v", got.Header)
	}
	if got := p.Send(t, http.MethodGet, "/login",
		nil); got.Header.Get("Location") != prefix+"/echo/home" ||
		got.Header.Get("Set-Cookie") != "session=1; Path="+prefix {
		t.Errorf("%s %v", got, got.Header)
	}
	const size = 16 << 20
	upload := p.Send(t, http.MethodPost, "/digest", io.LimitReader(&conformance.Counting{}, size))
	if want := fmt.Sprintf("%d %s <nil>", size,
		conformance.DigestOf(t, io.LimitReader(&conformance.Counting{}, size))); upload.Body != want {
		t.Errorf("the sandbox got %s, want %s", upload, want)
	}
	conformance.EventsInStep(t, p)
	conformance.Messages(t, p.Dial(t))
	conformance.HalfClosed(t, p)
	conformance.ExecdThroughTheService(t,
		s.Below(t, fmt.Sprintf("/%s/%d", id, conformance.DaemonPort), endpoint.Headers)).Want(t,
		"echo inside", "inside\n")
	// The service's way is there as well.
	conformance.Messages(t, s.Inside(t, id, port).Dial(t))

	for name, headers := range map[string]map[string]string{
		"no token": nil, "a wrong token": {"X-EXECD-ACCESS-TOKEN": "guess"},
		"the service's key alone": {conformance.KeyHeader: conformance.AdminKey},
	} {
		got := s.Below(t, prefix, headers).Send(t, http.MethodGet, "/echo/x", nil)
		if got.Status != http.StatusUnauthorized {
			t.Errorf("%s: %s", name, got)
		}
	}
	unknown := s.Below(t, "/11111111-2222-4333-8444-555555555555/80", endpoint.Headers).Send(t,
		http.MethodGet, "/", nil)
	conformance.WantProblem(t, unknown, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	s.Pause(t, id)
	conformance.WantProblem(t, p.Send(t, http.MethodGet, "/echo/x", nil), http.StatusConflict, "CONFLICT",
		"Paused")
	s.Resume(t, id)
}

// freeHostPort returns a port that a sandbox on the host's network can listen on: one below those
// of outgoing connections.
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
