package conformance

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testLife(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := Request(s.Images.Base, "sleep", "1000")
	r.Metadata = lifecycle.Metadata{"name": "a life"}
	r.Extensions = json.RawMessage(`{"example.number":12345678901234567890}`)

	before := time.Now()
	created, err := s.API.CreateSandboxWithResponse(t.Context(), nil, r)
	if err != nil {
		t.Fatal(err)
	}
	box := created.JSON202
	if box == nil {
		t.Fatalf("create: %s: %s", created.Status(), created.Body)
	}
	id := box.ID
	watched := s.Watch(t, id)
	if got := created.HTTPResponse.Header.Get("Location"); got != "/v1/sandboxes/"+id {
		t.Errorf("Location is %q", got)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(created.Body, &fields); err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(fields)),
		[]string{"createdAt", "entrypoint", "expiresAt", "id", "metadata",
			"status"}; !slices.Equal(got, want) {
		t.Errorf("the create response has the fields %q, want %q", got, want)
	}
	if box.Status.State != "Pending" || box.Metadata["name"] != "a life" ||
		!slices.Equal(box.Entrypoint, r.Entrypoint) {
		t.Errorf("created %+v", box)
	}
	if got := box.ExpiresAt.Sub(box.CreatedAt); got != Lifetime() ||
		box.CreatedAt.Before(before.Add(-time.Second)) {
		t.Errorf("created at %v, expires %v later", box.CreatedAt, got)
	}

	// Asked for right after the 202, the endpoint is the final one already.
	early := s.Endpoint(t, id, DaemonPort)
	running := s.Await(t, id, "Running")
	watched.Await(t, "Running")
	if running.Status.Reason != "CONTAINER_RUNNING" || running.Image.URI != s.Images.Base ||
		running.Metadata["name"] != "a life" {
		t.Errorf("running: %+v", running)
	}
	if late := s.Endpoint(t, id, DaemonPort); late.URL != early.URL ||
		!maps.Equal(late.Headers, early.Headers) {
		t.Errorf("the endpoint was %v right after the 202 and is %v now", early, late)
	}
	inside := s.Enter(t, id)
	inside.Want(t, "echo hello", "hello\n")

	s.Pause(t, id)
	watched.Await(t, "Paused")
	s.Resume(t, id)
	inside.Want(t, "echo again", "again\n")

	later := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	renewed, err := s.API.RenewExpirationWithResponse(t.Context(), id,
		lifecycle.RenewRequest{ExpiresAt: later})
	if err != nil {
		t.Fatal(err)
	}
	if renewed.JSON200 == nil || !renewed.JSON200.ExpiresAt.Equal(later) ||
		!s.Get(t, id).ExpiresAt.Equal(later) {
		t.Errorf("renewed: %s: %s", renewed.Status(), renewed.Body)
	}

	s.Delete(t, id)
	if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason of the end is %s", got.Reason)
	}
	watched.Await(t, "Terminated")
	watched.stop()
	CheckSequence(t, watched.states)
}

func testEndpointOfAnotherPort(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := Request(s.Images.Base, "python3", "-m", "http.server", "8000")
	r.Env = lifecycle.Env{"PYTHONUNBUFFERED": "1"}
	id := s.Running(t, r)
	for _, port := range []int{DaemonPort, 8000} {
		endpoint := s.Endpoint(t, id, port)
		if endpoint.Endpoint == "" || endpoint.URL != "http://"+endpoint.Endpoint {
			t.Errorf("port %d: endpoint %q, url %q", port, endpoint.Endpoint, endpoint.URL)
		}
		path := "/"
		if port == DaemonPort {
			path = "/metrics"
		}
		token := endpoint.Headers["X-EXECD-ACCESS-TOKEN"]
		for _, sent := range []struct {
			token string
			want  int
		}{{token, http.StatusOK}, {"", http.StatusUnauthorized},
			{token + "x", http.StatusUnauthorized}} {
			wait.Until(t, "the server inside answers", func() bool {
				got := Fetch(t, endpoint.URL+path, "X-EXECD-ACCESS-TOKEN", sent.token)
				if got.Status == http.StatusBadGateway { // python3 does not listen yet
					return false
				}
				if got.Status != sent.want {
					t.Errorf("port %d with token %q: %s, want %d", port, sent.token, got, sent.want)
				}
				return true
			})
		}
	}
}
