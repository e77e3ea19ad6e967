package conformance

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testPreferWait(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	prefer := []string{"Prefer", "respond-async, wait=60"}
	applied := func(got Answer, want string) {
		t.Helper()
		if header := got.Header.Get("Preference-Applied"); header != want {
			t.Errorf("Preference-Applied is %q, want %q", header, want)
		}
	}
	got := s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, s.Idle()), prefer...)
	created, err := Decode[lifecycle.CreatedSandbox](got)
	if err != nil || got.Status != http.StatusAccepted || created.Status.State != "Running" {
		t.Fatalf("create: %v; %s", err, got)
	}
	applied(got, "wait")
	for _, metric := range []string{"decode", "validate", "durable", "ready"} {
		if !strings.Contains(got.Header.Get("Server-Timing"), metric+";dur=") {
			t.Errorf("Server-Timing lacks %s: %q", metric, got.Header.Get("Server-Timing"))
		}
	}
	path := "/v1/sandboxes/" + created.ID
	shows := func(want string) {
		t.Helper()
		if state := s.Get(t, created.ID).Status.State; state != want {
			t.Errorf("the state is %s right after the answer, want %s", state, want)
		}
	}
	for _, step := range []struct {
		method, path string
		status       int
		state        string
	}{
		{"POST", path + "/pause", 202, "Paused"},
		{"POST", path + "/resume", 202, "Running"},
		{"GET", path, 200, "Running"},
		{"DELETE", path, 204, "Terminated"},
		{"GET", path, 200, "Terminated"},
	} {
		got := s.Send(t, step.method, step.path, "", prefer...)
		if got.Status != step.status {
			t.Errorf("%s %s: %s, want %d", step.method, step.path, got, step.status)
		}
		applied(got, "wait")
		shows(step.state)
	}

	t.Run("failure", func(t *testing.T) {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes",
			Encode(t, Request(s.Images.Busybox, "/no/such/program")), prefer...)
		created, err := Decode[lifecycle.CreatedSandbox](got)
		if err != nil || got.Status != http.StatusAccepted || created.Status.State != "Failed" {
			t.Errorf("%v; %s", err, got)
		}
	})
	t.Run("ignored", func(t *testing.T) {
		for _, prefer := range []string{"wait", "wait=", "wait=soon", "wait=0", "wait=-1",
			"wait=1.5", "return=minimal", "=", ";", ""} {
			got := s.Send(t, http.MethodGet, path, "", "Prefer", prefer)
			if got.Status != http.StatusOK {
				t.Errorf("Prefer: %q: %s", prefer, got)
			}
			applied(got, "")
		}
	})
	t.Run("without", func(t *testing.T) {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, s.Idle()))
		created, err := Decode[lifecycle.CreatedSandbox](got)
		if err != nil || created.Status.State != "Pending" ||
			!strings.Contains(got.Header.Get("Server-Timing"), "durable;dur=") {
			t.Errorf("%v; %s; Server-Timing %q", err, got, got.Header.Get("Server-Timing"))
		}
		applied(got, "")
	})
	t.Run("a client that leaves", func(t *testing.T) {
		// The end of the test proves, with goleak, that nothing goes on waiting.
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/sandboxes",
			strings.NewReader(Encode(t, s.Idle())))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.authorise(ctx, request)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Prefer", "wait=60")
		before := IDs(s.Everything(t))
		left := make(chan struct{})
		go func() {
			defer close(left)
			if response, err := s.HTTP.Do(request); err == nil {
				response.Body.Close()
			}
		}()
		var fresh []string
		wait.Until(t, "the create is accepted", func() bool {
			fresh = slices.DeleteFunc(IDs(s.Everything(t)),
				func(id string) bool { return slices.Contains(before, id) })
			return len(fresh) == 1
		})
		cancel()
		wait.For(t, "the end of the request", left)
		s.Settled(t, fresh[0]) // the sandbox is made all the same
	})
}
