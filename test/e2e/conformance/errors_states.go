package conformance

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testConflicts(t *testing.T, s *Service, running, paused, ended string) {
	for _, c := range []struct {
		id, state string
		allowed   []string // operations
	}{
		{running, "Running",
			[]string{"getSandbox", "deleteSandbox", "pauseSandbox", "renewExpiration",
				"getEndpoint", "updateMetadata", "getActivity", "watchActivity"}},
		{paused, "Paused",
			[]string{"getSandbox", "deleteSandbox", "resumeSandbox", "renewExpiration",
				"getEndpoint", "updateMetadata"}},
		{ended, "Terminated", []string{"getSandbox"}},
	} {
		for _, o := range OperationsOn(c.id) {
			if !slices.Contains(append(c.allowed, "getLogs", "streamSandboxEvents"), o.Name) {
				t.Run(o.Name+" while "+c.state, func(t *testing.T) {
					WantProblem(t, s.Send(t, o.Method, o.Path, o.Body), 409, "CONFLICT", c.state)
				})
			}
		}
	}
}

// testLostLog removes what runs a sandbox past the service, and the end of its log with it.
func testLostLog(t *testing.T, s *Service) {
	id := s.Running(t, s.Idle())
	s.backend.Destroy(t, s.Instance, id)
	wait.Until(t, "the sandbox is Failed",
		func() bool { return s.Get(t, id).Status.State == "Failed" })
	WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/logs", ""), 409, "CONFLICT",
		"lost", "Failed")
}

func testUnknownIDs(t *testing.T, s *Service) {
	for _, id := range []string{uuid.NewString(), "x", "%2e%2e%2fhealth"} {
		for _, o := range OperationsOn(id) {
			t.Run(o.Name, func(t *testing.T) {
				WantProblem(t, s.Send(t, o.Method, o.Path, o.Body), 404, "SANDBOX_NOT_FOUND",
					"does not exist")
			})
		}
	}
}

func testIdempotency(t *testing.T, s *Service) {
	key := uuid.NewString()
	first := Encode(t, s.Idle())
	var id string
	for range 3 {
		got, err := Decode[lifecycle.CreatedSandbox](s.Send(t, http.MethodPost, "/v1/sandboxes",
			first, "Idempotency-Key", key))
		if err != nil {
			t.Fatal(err)
		}
		if id != "" && got.ID != id {
			t.Errorf("the same key and body gave %s and %s", id, got.ID)
		}
		id = got.ID
	}
	other := s.Idle()
	other.Timeout++
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, other), "Idempotency-Key",
		key), 409, "CONFLICT", "Idempotency-Key", key)
	s.Delete(t, id)
}
