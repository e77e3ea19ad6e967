package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

func TestIngress(t *testing.T) {
	t.Parallel()
	conformance.Ingress(t, onDocker(openEngine(t, os.Getenv("DOCKER_HOST"))))
}

// TestSignedEndpointEnds: a signature that has expired is refused, and what a valid one opened is
// in the audit log under a name of its own.
func TestSignedEndpointEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, conformance.Plan{Server: "audit_log = \"" + path + "\""})
	id := conformance.PortServer(t, &s.Client, 8000)
	s.Inside(t, id, 8000).Ready(t)
	p := s.Below(t, fmt.Sprintf("/v1/sandboxes/%s/proxy/8000", id), nil)
	sign := func(expires string) string {
		t.Helper()
		response, err := s.API.GetEndpointWithResponse(t.Context(), id, 8000,
			&lifecycle.GetEndpointParams{Expires: &expires})
		if err != nil || response.JSON200 == nil || response.JSON200.Signature == nil {
			t.Fatalf("%v, %s", err, response.Body)
		}
		return "?sandbox-signature=" + url.QueryEscape(*response.JSON200.Signature)
	}
	good, brief := sign("500"), sign("1")
	if got := p.Send(t, http.MethodPost, "/echo/x"+good,
		strings.NewReader("body")); got.Status != http.StatusOK {
		t.Errorf("%s", got)
	}
	wait.Until(t, "the signature has expired", func() bool {
		got := p.Send(t, http.MethodGet, "/echo/x"+brief, nil)
		return got.Status == http.StatusUnauthorized && strings.Contains(got.Body, "expired")
	})
	want := "outcome reachPort signed endpoint " + id + " OK "
	s.Halt(t) // then all lines are written
	if lines := outcomes(auditLines(t, path)); !slices.Contains(lines, want) {
		t.Errorf("no %q in %q", want, lines)
	}
	s.Boot(t)
}
