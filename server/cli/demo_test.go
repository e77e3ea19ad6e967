package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/cli"
)

// That the demo succeeds counts only against the real services, and is shown there.
// These tests are about its failures, which the real services do not produce on demand:
// a scripted service stands in for them.

const sandboxID = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"

// script is a service whose sandboxes only ever have one status.
type script struct {
	status  lifecycle.SandboxStatus
	key     string // that it asks for, if any
	created func() // called while a create is in flight
	polled  func() // called by each GET of the sandbox

	mu      sync.Mutex
	deletes int
}

func (s *script) start(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "request-1")
		if r.Header.Get("SERVICE-API-KEY") != s.key {
			answer(w, http.StatusUnauthorized,
				lifecycle.Error{Code: "UNAUTHORIZED", Message: "the key is wrong",
					Detail: "the key is wrong"})
			return
		}
		if s.created != nil {
			s.created()
		}
		w.Header().Set("Location", "/v1/sandboxes/"+sandboxID)
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
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deletes++
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func (s *script) deleted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deletes
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func TestDemoPrintsErrorAnswers(t *testing.T) {
	t.Parallel()
	service := &script{key: "right"}
	got := run(t.Context(),
		map[string]string{"SANDBOX_URL": service.start(t), "SERVICE_API_KEY": "wrong"}, "demo")
	want := "create: status 401 UNAUTHORIZED: the key is wrong (X-Request-ID request-1)"
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
	}
	if service.deleted() != 0 {
		t.Error("a sandbox was deleted that was never created")
	}
}

func TestDemoPrintsForeignAnswers(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "no upstream\n")
	}))
	t.Cleanup(proxy.Close)
	got := run(t.Context(), nil, "demo", "--url", proxy.URL)
	if want := "create: status 502: no upstream"; got.code != cli.ExitFailed ||
		!strings.Contains(got.stderr, want) {
		t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
	}
}

func TestDemoDeletesASandboxThatFailed(t *testing.T) {
	t.Parallel()
	service := &script{status: lifecycle.SandboxStatus{State: "Failed", Reason: "IMAGE_PULL_ERROR",
		Message: "manifest unknown"}}
	got := run(t.Context(), nil, "demo", "--url", service.start(t))
	want := "running: the sandbox is Failed: IMAGE_PULL_ERROR: manifest unknown"
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
	}
	if service.deleted() != 1 {
		t.Errorf("%d deletes, want 1", service.deleted())
	}
}

func TestInterruptDeletesTheSandbox(t *testing.T) {
	t.Parallel()
	// An unknown state is waited for like any other.
	status := lifecycle.SandboxStatus{State: "Hatching", Message: "pulling layer 3"}
	tests := []struct {
		name, step string
		during     func(*script, func())
	}{
		{"while it waits", "running", func(s *script, interrupt func()) { s.polled = interrupt }},
		{"while the create is in flight", "running",
			func(s *script, interrupt func()) { s.created = interrupt }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			service := &script{status: status}
			test.during(service, interrupt)
			got := run(ctx, nil, "demo", "--url", service.start(t))
			if want := test.step + ": interrupted"; got.code != cli.ExitFailed ||
				!strings.Contains(got.stderr, want) {
				t.Errorf("code %d, stderr %q, want %q in it", got.code, got.stderr, want)
			}
			if service.deleted() != 1 || !strings.Contains(got.stdout, sandboxID+" is deleted") {
				t.Errorf("%d deletes, want 1; stdout %q", service.deleted(), got.stdout)
			}
		})
	}
}

func TestDemoShowsProgress(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	service := &script{status: lifecycle.SandboxStatus{State: "Pending",
		Message: "pulling layer 3"}}
	polls := 0
	service.polled = func() {
		if polls++; polls == 3 {
			interrupt()
		}
	}
	got := run(ctx, nil, "demo", "--url", service.start(t))
	if strings.Count(got.stdout, "pulling layer 3\n") != 1 {
		t.Errorf("the same progress is to be shown once, not as in:\n%s", got.stdout)
	}
}
