package e2e_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
)

func TestRowsOfLives(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	var id string
	var watched *watcher
	t.Run("row lifecycle/transitions/create to Pending", func(t *testing.T) {
		created := objectOf(t, s.accept(t, nil))
		id = created.text(t, "id")
		if status, _ := created["status"].(map[string]any); status["state"] != "Pending" {
			t.Errorf("the state is %v", status)
		}
	})
	watched = s.watch(t, id)
	t.Run("row lifecycle/transitions/Pending to Running", func(t *testing.T) { s.await(t, id, "Running") })
	watched.await(t, "Running")
	t.Run("row lifecycle/transitions/Running to Pausing", func(t *testing.T) { s.act(t, http.MethodPost, id+"/pause", http.StatusAccepted) })
	t.Run("row lifecycle/transitions/Pausing to Paused", func(t *testing.T) { s.await(t, id, "Paused") })
	watched.await(t, "Paused")
	t.Run("row lifecycle/transitions/Paused to Running", func(t *testing.T) {
		s.act(t, http.MethodPost, id+"/resume", http.StatusAccepted)
		s.await(t, id, "Running")
	})
	t.Run("row lifecycle/transitions/Running or Paused to Stopping", func(t *testing.T) {
		s.act(t, http.MethodDelete, id, http.StatusNoContent)
		if got := s.get(t, id).Status.State; got != "Stopping" && got != "Terminated" {
			t.Errorf("after the DELETE the state is %s", got)
		}
	})
	t.Run("row lifecycle/transitions/Stopping to Terminated", func(t *testing.T) { s.await(t, id, "Terminated") })
	t.Run("row lifecycle/transitions/to Failed", func(t *testing.T) {
		failing := s.running(t, request(busyboxImage, "sh", "-c", "sleep 1; exit 3"))
		s.await(t, failing, "Failed")
	})
	watched.await(t, "Terminated")
	watched.stop()
	checkSequence(t, watched.states)
}

func TestRowsOfOperations(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	want := func(t *testing.T, method, path, body string, status int) answer {
		t.Helper()
		got := s.send(t, method, path, body)
		if got.status != status {
			t.Fatalf("%s %s: %s, want %d", method, path, got, status)
		}
		return got
	}
	const missing = "/v1/sandboxes/8c5c8aa2-2f4c-4f63-9f1e-6c2b1f3f0c51"
	unknown := func(t *testing.T, method, rest, body string) {
		t.Helper()
		wantProblem(t, s.send(t, method, missing+rest, body), 404, "SANDBOX_NOT_FOUND")
	}
	var path string
	t.Run("row lifecycle/operations/GET /health", func(t *testing.T) {
		if got := objectOf(t, s.as(t, "").send(t, http.MethodGet, "/health", "")); got.text(t, "status") != "healthy" {
			t.Errorf("the answer is %v", got)
		}
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes", func(t *testing.T) {
		got := s.accept(t, nil)
		path = got.header.Get("Location")
		if path != "/v1/sandboxes/"+objectOf(t, got).text(t, "id") {
			t.Errorf("Location is %q", path)
		}
	})
	t.Run("row lifecycle/operations/X-Request-ID", func(t *testing.T) {
		if got := s.send(t, http.MethodGet, missing, "", "X-Request-ID", "of-mine"); got.header.Get("X-Request-ID") != "of-mine" {
			t.Errorf("it is %q", got.header.Get("X-Request-ID"))
		}
	})
	t.Run("row lifecycle/operations/GET /v1/sandboxes", func(t *testing.T) { want(t, "GET", "/v1/sandboxes", "", 200) })
	t.Run("row lifecycle/operations/GET /v1/sandboxes/{sandboxId}", func(t *testing.T) {
		want(t, "GET", path, "", 200)
		unknown(t, "GET", "", "")
	})
	t.Run("row lifecycle/operations/GET /v1/sandboxes/{sandboxId}/endpoints/{port}", func(t *testing.T) {
		got := objectOf(t, want(t, "GET", path+"/endpoints/8080", "", 200))
		if got.text(t, "endpoint") == "" {
			t.Errorf("the endpoint is %v", got)
		}
		unknown(t, "GET", "/endpoints/8080", "")
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/renew-expiration", func(t *testing.T) {
		got := objectOf(t, want(t, "POST", path+"/renew-expiration", renewal(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), 200))
		if len(got) != 1 {
			t.Errorf("the answer is %v, want expiresAt alone", got)
		}
		unknown(t, "POST", "/renew-expiration", renewal(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	})
	t.Run("row lifecycle/renew/expiresAt", func(t *testing.T) {
		for _, at := range []time.Duration{-time.Hour, time.Minute} { // past, and before the expiry that is set
			wantProblem(t, s.send(t, "POST", path+"/renew-expiration", renewal(time.Now().Add(at).UTC().Format(time.RFC3339))),
				400, "INVALID_REQUEST_BODY", "expiresAt")
		}
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/pause", func(t *testing.T) {
		if got := want(t, "POST", path+"/pause", "", 202); got.body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		unknown(t, "POST", "/pause", "")
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/resume", func(t *testing.T) {
		if got := want(t, "POST", path+"/resume", "", 202); got.body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		unknown(t, "POST", "/resume", "")
	})
	t.Run("row lifecycle/operations/DELETE /v1/sandboxes/{sandboxId}", func(t *testing.T) {
		if got := want(t, "DELETE", path, "", 204); got.body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		unknown(t, "DELETE", "", "")
	})
}

func TestRowsOfCodes(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	t.Run("row lifecycle/codes/IMAGE_PULL_ERROR", func(t *testing.T) {
		id := s.create(t, request("127.0.0.1:1/no/such:image", "sleep", "1"))
		if got := s.await(t, id, "Failed").Status; got.Reason != "IMAGE_PULL_ERROR" {
			t.Errorf("the reason is %s", got.Reason)
		}
	})
	t.Run("row lifecycle/codes/RESOURCE_LIMIT_EXCEEDED", func(t *testing.T) {
		id := s.create(t, limited(idle(), "99", "64Mi"))
		if got := s.await(t, id, "Failed").Status; got.Reason != "RESOURCE_LIMIT_EXCEEDED" {
			t.Errorf("the reason is %s", got.Reason)
		}
	})
	t.Run("row lifecycle/codes/EXPIRED", func(t *testing.T) {
		r := idle()
		r.Timeout = 60
		id := s.create(t, r)
		if got := s.awaitWithin(t, id, "Terminated", 3*patience).Status; got.Reason != "EXPIRED" {
			t.Errorf("the reason is %s", got.Reason)
		}
		if left := s.containers(t); slices.ContainsFunc(left, func(c engine.Container) bool { return c.Name == "sandbox-"+id }) {
			t.Errorf("its container is still there: %v", left)
		}
	})
	t.Run("row lifecycle/codes/INVALID_REQUEST_BODY", func(t *testing.T) {
		wantProblem(t, s.send(t, http.MethodPost, "/v1/sandboxes", `{`), 400, "INVALID_REQUEST_BODY")
	})
	t.Run("row lifecycle/codes/detail", func(t *testing.T) {
		got := s.send(t, http.MethodPost, "/v1/sandboxes", body(t, fields{"entrypoint": []string{}}))
		if got.status != 400 || got.body == "" {
			t.Fatal(got)
		}
		contains(t, got.body, `"detail"`, "entrypoint")
	})
}
