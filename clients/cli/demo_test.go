package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// That the demo succeeds counts only against the real services, and is shown there.
// These tests are about its failures, which the real services do not produce on demand:
// a scripted service stands in for them.

const sandboxID = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"

// script is a service whose sandboxes only ever have one status.
type script struct {
	image   *string // the default one
	asked   lifecycle.CreateSandboxRequest
	status  lifecycle.SandboxStatus
	created func() // called while a create is in flight
	polled  func() // called by each GET of the sandbox
	deletes atomic.Int32
}

func (s *script) start(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, lifecycle.Version{Defaults: &lifecycle.CreateDefaults{
			Image: s.image, Timeout: 700, Entrypoint: []string{"idle"},
		}})
	})
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&s.asked)
		if s.created != nil {
			s.created()
		}
		answer(w, http.StatusAccepted,
			lifecycle.CreatedSandbox{ID: sandboxID, ExpiresAt: time.Now().Add(time.Hour)})
	})
	mux.HandleFunc("GET /v1/sandboxes/"+sandboxID, func(w http.ResponseWriter, _ *http.Request) {
		if s.polled != nil {
			s.polled()
		}
		answer(w, http.StatusOK, lifecycle.Sandbox{ID: sandboxID, Status: s.status})
	})
	mux.HandleFunc("DELETE /v1/sandboxes/"+sandboxID, func(w http.ResponseWriter, _ *http.Request) {
		s.deletes.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Request-ID", "request-1")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func TestDemoPrintsErrorAnswers(t *testing.T) {
	t.Parallel()
	url, _ := keyed(t, "right")
	got := run(t.Context(), map[string]string{"SANDBOX_URL": url, "SERVICE_API_KEY": "wrong"}, "demo")
	want := "demo: create: status 401 UNAUTHORIZED: wrong key (X-Request-ID request-1)"
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
	}
}

func TestDemoWithoutService(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), nil, "--url", "http://"+loopback.Refusing(t), "demo")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "demo: create: ") ||
		!strings.Contains(got.stderr, "is the service running") {
		t.Errorf("code %d, stderr %q", got.code, got.stderr)
	}
	if !strings.Contains(got.stdout, "✗ create") {
		t.Errorf("stdout %q does not show the step that failed", got.stdout)
	}
}

func TestDemoWithoutAnImage(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), nil, "demo", "--url", (&script{}).start(t))
	if want := "demo: create: the service has no default image"; got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) ||
		!strings.Contains(got.stderr, "--image") {
		t.Errorf("code %d, stderr %q, want %q and --image in it", got.code, got.stderr, want)
	}
}

func TestDemoDeletesASandboxThatFailed(t *testing.T) {
	t.Parallel()
	service := &script{status: lifecycle.SandboxStatus{State: "Failed", Reason: "IMAGE_PULL_ERROR",
		Message: "manifest unknown"}}
	service.image = new("usual:1")
	got := run(t.Context(), nil, "demo", "--url", service.start(t))
	want := "is Failed, not Running: IMAGE_PULL_ERROR: manifest unknown"
	if asked := service.asked; asked.Image.URI != "usual:1" || asked.Timeout != 700 || !slices.Equal(asked.Entrypoint, []string{"idle"}) ||
		asked.ResourceLimits == nil || *asked.ResourceLimits != (lifecycle.ResourceLimits{}) {
		t.Errorf("it asked for %+v, which are not the service's defaults", asked)
	}
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
	}
	if n := service.deletes.Load(); n != 1 {
		t.Errorf("%d deletes, want 1", n)
	}
}

func TestInterruptDeletesTheSandbox(t *testing.T) {
	t.Parallel()
	// An unknown state is waited for like any other.
	status := lifecycle.SandboxStatus{State: "Hatching", Message: "pulling layer 3"}
	tests := []struct {
		name   string
		during func(*script, func())
	}{
		{"while it waits", func(s *script, interrupt func()) { s.polled = interrupt }},
		{"while the create is in flight", func(s *script, interrupt func()) { s.created = interrupt }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			service := &script{status: status}
			test.during(service, interrupt)
			got := run(ctx, nil, "demo", "--image", "x", "--url", service.start(t))
			if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "running: interrupted") {
				t.Errorf("code %d, stderr %q", got.code, got.stderr)
			}
			if n := service.deletes.Load(); n != 1 || !strings.Contains(got.stdout, sandboxID+" is deleted") {
				t.Errorf("%d deletes, want 1; stdout %q", n, got.stdout)
			}
		})
	}
}
