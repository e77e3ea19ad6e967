package conformance

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func testRowsOfLives(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	var id string
	var watched *Watcher
	t.Run("row lifecycle/transitions/create to Pending", func(t *testing.T) {
		created := objectOf(t, s.accept(t, nil))
		id = created.text(t, "id")
		if status, _ := created["status"].(map[string]any); status["state"] != "Pending" {
			t.Errorf("the state is %v", status)
		}
	})
	watched = s.Watch(t, id)
	t.Run("row lifecycle/transitions/Pending to Running",
		func(t *testing.T) { s.Await(t, id, "Running") })
	watched.Await(t, "Running")
	t.Run("row lifecycle/transitions/Running to Pausing",
		func(t *testing.T) { s.Act(t, http.MethodPost, id+"/pause", http.StatusAccepted) })
	t.Run("row lifecycle/transitions/Pausing to Paused", func(t *testing.T) {
		if status := s.Await(t, id, "Paused").Status; status.Message == "" {
			t.Errorf("there is no message: %+v", status)
		}
	})
	watched.Await(t, "Paused")
	t.Run("row lifecycle/transitions/Paused to Running", func(t *testing.T) {
		s.Act(t, http.MethodPost, id+"/resume", http.StatusAccepted)
		s.Await(t, id, "Running")
	})
	t.Run("row lifecycle/transitions/Running or Paused to Stopping", func(t *testing.T) {
		s.Act(t, http.MethodDelete, id, http.StatusNoContent)
		if got := s.Get(t, id).Status.State; got != "Stopping" && got != "Terminated" {
			t.Errorf("after the DELETE the state is %s", got)
		}
	})
	t.Run("row lifecycle/transitions/Stopping to Terminated", func(t *testing.T) {
		if status := s.Await(t, id, "Terminated").Status; status.Message == "" {
			t.Errorf("there is no message: %+v", status)
		}
	})
	t.Run("row lifecycle/transitions/to Failed", func(t *testing.T) {
		failing := s.Running(t,
			Request(s.Images.Busybox, "sh", "-c",
				"until [ -e /tmp/now ]; do sleep 0.1; done; exit 3"))
		s.Enter(t, failing).RunFatal(t, "touch /tmp/now")
		s.Await(t, failing, "Failed")
	})
	watched.Await(t, "Terminated")
	watched.stop()
	CheckSequence(t, watched.states)
}

func testRowsOfOperations(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	want := func(t *testing.T, method, path, body string, status int) Answer {
		t.Helper()
		got := s.Send(t, method, path, body)
		if got.Status != status {
			t.Fatalf("%s %s: %s, want %d", method, path, got, status)
		}
		return got
	}
	const missing = "/v1/sandboxes/8c5c8aa2-2f4c-4f63-9f1e-6c2b1f3f0c51"
	unknown := func(t *testing.T, method, rest, body string) {
		t.Helper()
		WantProblem(t, s.Send(t, method, missing+rest, body), 404, "SANDBOX_NOT_FOUND")
	}
	var path string
	t.Run("row lifecycle/operations/GET /health", func(t *testing.T) {
		if got := objectOf(t, s.As(t, "").Send(t, http.MethodGet, "/health", "")); got.text(t,
			"status") != "healthy" {
			t.Errorf("the answer is %v", got)
		}
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes", func(t *testing.T) {
		got := s.accept(t, nil)
		path = got.Header.Get("Location")
		if path != "/v1/sandboxes/"+objectOf(t, got).text(t, "id") {
			t.Errorf("Location is %q", path)
		}
	})
	t.Run("row lifecycle/operations/X-Request-ID", func(t *testing.T) {
		if got := s.Send(t, http.MethodGet, missing, "", "X-Request-ID",
			"of-mine"); got.Header.Get("X-Request-ID") != "of-mine" {
			t.Errorf("X-Request-ID is %q", got.Header.Get("X-Request-ID"))
		}
	})
	t.Run("row lifecycle/operations/GET /v1/sandboxes",
		func(t *testing.T) { want(t, "GET", "/v1/sandboxes", "", 200) })
	t.Run("row lifecycle/operations/GET /v1/sandboxes/{sandboxId}", func(t *testing.T) {
		want(t, "GET", path, "", 200)
		unknown(t, "GET", "", "")
	})
	t.Run("row lifecycle/operations/GET /v1/sandboxes/{sandboxId}/endpoints/{port}",
		func(t *testing.T) {
			got := objectOf(t, want(t, "GET", path+"/endpoints/8080", "", 200))
			if got.text(t, "endpoint") == "" {
				t.Errorf("the endpoint is %v", got)
			}
			unknown(t, "GET", "/endpoints/8080", "")
		})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/renew-expiration",
		func(t *testing.T) {
			got := objectOf(t,
				want(t, "POST", path+"/renew-expiration",
					Renewal(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), 200))
			if len(got) != 1 {
				t.Errorf("the answer is %v, want expiresAt alone", got)
			}
			unknown(t, "POST", "/renew-expiration",
				Renewal(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
		})
	t.Run("row lifecycle/renew/expiresAt", func(t *testing.T) {
		for _, at := range []time.Duration{-time.Hour, time.Minute} {
			// past, and before the expiry that is set
			WantProblem(t, s.Send(t, "POST", path+"/renew-expiration",
				Renewal(time.Now().Add(at).UTC().Format(time.RFC3339))),
				400, "INVALID_REQUEST_BODY", "expiresAt")
		}
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/pause", func(t *testing.T) {
		if got := want(t, "POST", path+"/pause", "", 202); got.Body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		s.Await(t, strings.TrimPrefix(path, "/v1/sandboxes/"), "Paused")
		unknown(t, "POST", "/pause", "")
	})
	t.Run("row lifecycle/operations/POST /v1/sandboxes/{sandboxId}/resume", func(t *testing.T) {
		if got := want(t, "POST", path+"/resume", "", 202); got.Body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		s.Await(t, strings.TrimPrefix(path, "/v1/sandboxes/"), "Running")
		unknown(t, "POST", "/resume", "")
	})
	t.Run("row lifecycle/operations/DELETE /v1/sandboxes/{sandboxId}", func(t *testing.T) {
		if got := want(t, "DELETE", path, "", 204); got.Body != "" {
			t.Errorf("the answer has a body: %s", got)
		}
		unknown(t, "DELETE", "", "")
	})
}

func testRowsOfCodes(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	t.Run("row lifecycle/codes/IMAGE_PULL_ERROR", func(t *testing.T) {
		id := s.Create(t, Request("127.0.0.1:1/no/such:image", "sleep", "1"))
		if got := s.Await(t, id, "Failed").Status; got.Reason != "IMAGE_PULL_ERROR" {
			t.Errorf("the reason is %s", got.Reason)
		}
	})
	t.Run("row lifecycle/codes/INVALID_REQUEST_BODY", func(t *testing.T) {
		WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", `{`), 400,
			"INVALID_REQUEST_BODY")
	})
	t.Run("row lifecycle/codes/detail", func(t *testing.T) {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes",
			s.Body(t, fields{"entrypoint": []string{}}))
		if got.Status != 400 || got.Body == "" {
			t.Fatal(got)
		}
		Contains(t, got.Body, `"detail"`, "entrypoint")
	})
}
