package e2e_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/gen/lifecycle"
)

func TestPreferWait(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	wait := []string{"Prefer", "respond-async, wait=60"}
	applied := func(got answer, want string) {
		t.Helper()
		if header := got.header.Get("Preference-Applied"); header != want {
			t.Errorf("Preference-Applied is %q, want %q", header, want)
		}
	}
	got := s.send(t, http.MethodPost, "/v1/sandboxes", encode(t, idle()), wait...)
	created, err := decode[lifecycle.CreatedSandbox](got)
	if err != nil || got.status != http.StatusAccepted || created.Status.State != "Running" {
		t.Fatalf("create: %v; %s", err, got)
	}
	applied(got, "wait")
	for _, metric := range []string{"decode", "validate", "durable", "pulled", "created", "started", "ready"} {
		if !strings.Contains(got.header.Get("Server-Timing"), metric+";dur=") {
			t.Errorf("Server-Timing lacks %s: %q", metric, got.header.Get("Server-Timing"))
		}
	}
	path := "/v1/sandboxes/" + created.ID
	shows := func(want string) {
		t.Helper()
		if state := s.get(t, created.ID).Status.State; state != want {
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
		got := s.send(t, step.method, step.path, "", wait...)
		if got.status != step.status {
			t.Errorf("%s %s: %s, want %d", step.method, step.path, got, step.status)
		}
		applied(got, "wait")
		shows(step.state)
	}

	t.Run("failure", func(t *testing.T) {
		got := s.send(t, http.MethodPost, "/v1/sandboxes", encode(t, request(busyboxImage, "/no/such/program")), wait...)
		created, err := decode[lifecycle.CreatedSandbox](got)
		if err != nil || got.status != http.StatusAccepted || created.Status.State != "Failed" {
			t.Errorf("%v; %s", err, got)
		}
	})
	t.Run("ignored", func(t *testing.T) {
		for _, prefer := range []string{"wait", "wait=", "wait=soon", "wait=0", "wait=-1", "wait=1.5", "return=minimal", "=", ";", ""} {
			got := s.send(t, http.MethodGet, path, "", "Prefer", prefer)
			if got.status != http.StatusOK {
				t.Errorf("Prefer: %q: %s", prefer, got)
			}
			applied(got, "")
		}
	})
	t.Run("without", func(t *testing.T) {
		got := s.send(t, http.MethodPost, "/v1/sandboxes", encode(t, idle()))
		created, err := decode[lifecycle.CreatedSandbox](got)
		if err != nil || created.Status.State != "Pending" || !strings.Contains(got.header.Get("Server-Timing"), "durable;dur=") {
			t.Errorf("%v; %s; Server-Timing %q", err, got, got.header.Get("Server-Timing"))
		}
		applied(got, "")
	})
	t.Run("a client that leaves", func(t *testing.T) {
		// The end of the test proves, with goleak, that nothing goes on waiting.
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/sandboxes", strings.NewReader(encode(t, idle())))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.authorise(ctx, request)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Prefer", "wait=60")
		before := len(s.everything(t))
		left := make(chan struct{})
		go func() {
			defer close(left)
			if response, err := s.http.Do(request); err == nil {
				response.Body.Close()
			}
		}()
		eventually(t, "the create is accepted", func() bool { return len(s.everything(t)) > before })
		cancel()
		<-left
		s.settled(t, s.everything(t)[0].ID) // the sandbox is made all the same
	})
}
