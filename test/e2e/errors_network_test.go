package e2e_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

func operationsOnNetwork(id string) []conformance.Operation {
	path := "/v1/sandboxes/" + id
	return []conformance.Operation{
		{Name: "getNetworkPolicy", Method: "GET", Path: path + "/network-policy", Body: ""},
		{Name: "replaceNetworkPolicy", Method: "PUT", Path: path + "/network-policy",
			Body: `{"defaultAction":"deny"}`},
		{Name: "mergeNetworkPolicyRules", Method: "PATCH", Path: path + "/network-policy",
			Body: `[{"action":"allow","target":"a.example"}]`},
		{Name: "deleteNetworkPolicyRules", Method: "DELETE", Path: path + "/network-policy",
			Body: `["a.example"]`},
		{Name: "listNetworkDecisions", Method: "GET", Path: path + "/network-decisions", Body: ""},
		{Name: "proposeNetworkPolicy", Method: "GET", Path: path + "/network-decisions/proposal",
			Body: ""},
	}
}

// TestErrorsOfNetworkOperations provokes what the contract declares for the operations that need a
// sidecar, as TestErrors does for all others.
func TestErrorsOfNetworkOperations(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{
		Settings: "[egress]\nimage = \"" + egressImage + "\"\nupstream = [\"192.0.2.1\"]\n",
		Keys: []config.Key{
			{Name: "other", SHA256: conformance.Digest(conformance.OtherKey), Role: config.RoleUser},
			{Name: "viewer", SHA256: conformance.Digest(conformance.ViewerKey), Role: config.RoleViewer},
			{Name: "slow", SHA256: conformance.Digest(conformance.SlowKey), Role: config.RoleViewer,
				RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
		},
	})
	running, ended := s.Running(t, idle()), s.Create(t, idle())
	s.Delete(t, ended)
	s.Await(t, ended, "Terminated")

	conformance.RefuseUnknownParameters(t, s.Service, operationsOnNetwork(running))
	for _, o := range operationsOnNetwork(running) {
		t.Run(o.Name, func(t *testing.T) {
			if got := s.Send(t, o.Method, o.Path, o.Body, "Content-Type",
				"application/json"); got.Status != http.StatusOK {
				t.Errorf("%s", got)
			}
			conformance.WantProblem(t,
				s.As(t, "").Send(t, o.Method, o.Path, o.Body, "Content-Type", "application/json"),
				401, "UNAUTHORIZED", conformance.KeyHeader)
			conformance.WantProblem(t,
				s.As(t, conformance.OtherKey).Send(t, o.Method, o.Path, o.Body, "Content-Type",
					"application/json"), 403, "FORBIDDEN", "other")
			if o.Method != http.MethodGet {
				conformance.WantProblem(t,
					s.As(t, conformance.ViewerKey).Send(t, o.Method, o.Path, o.Body, "Content-Type",
						"application/json"), 403, "FORBIDDEN", "viewer")
				conformance.WantProblem(t,
					s.Send(t, o.Method, o.Path, `"neither a policy nor rules"`, "Content-Type",
						"application/json"), 400, "INVALID_REQUEST_BODY", "body")
				conformance.WantProblem(t,
					s.Send(t, o.Method, o.Path, `["`+strings.Repeat("x", 1<<20)+`"]`,
						"Content-Type", "application/json"), 413, "REQUEST_TOO_LARGE", "body")
			}
		})
	}
	events := s.Send(t, http.MethodGet, "/v1/sandboxes/"+running+"/network-decisions", "", "Accept",
		"text/event-stream", "Last-Event-ID", "x")
	conformance.WantProblem(t, events, 400, "INVALID_REQUEST_BODY", "Last-Event-ID")
	for _, o := range operationsOnNetwork("11111111-2222-4333-8444-555555555555") {
		conformance.WantProblem(t,
			s.Send(t, o.Method, o.Path, o.Body, "Content-Type", "application/json"), 404,
			"SANDBOX_NOT_FOUND")
	}
	for _, o := range operationsOnNetwork(ended) {
		conformance.WantProblem(t,
			s.Send(t, o.Method, o.Path, o.Body, "Content-Type", "application/json"), 409,
			"CONFLICT", "Terminated")
	}
	conformance.AskTooOften(t, s.Service, operationsOnNetwork("11111111-2222-4333-8444-555555555555"))
	t.Run("a store that fails", func(t *testing.T) { failStore(t, s, running) })
	t.Run("a sidecar that hangs", func(t *testing.T) {
		s.signalDaemon(t, running, "STOP")
		conformance.Concurrently(operationsOnNetwork(running), func(o conformance.Operation) {
			conformance.WantProblem(t,
				s.Send(t, o.Method, o.Path, o.Body, "Content-Type", "application/json"), 503,
				"SERVICE_UNAVAILABLE")
		})
		s.signalDaemon(t, running, "CONT")
	})
	conformance.CheckProvoked(t, s.Service, true)
	if !slices.Contains(s.Conform.Seen(), "getNetworkPolicy 200") {
		t.Error("the operations were not recognised")
	}
}

// failStore takes the table of the records away while policies are changed.
func failStore(t *testing.T, s *service, id string) {
	// the service's own driver
	database, err := sql.Open("sqlite", filepath.Join(s.Directory, "sandbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	rename := func(statement string) {
		t.Helper()
		if _, err := database.ExecContext(t.Context(),
			"PRAGMA busy_timeout = 5000; "+statement); err != nil {
			t.Fatal(err)
		}
	}
	rename("ALTER TABLE sandboxes RENAME TO taken_away")
	for i, o := range operationsOnNetwork(id) {
		if o.Method != http.MethodGet {
			// Something new each time: what changes nothing is not stored.
			body := strings.ReplaceAll(strings.ReplaceAll(o.Body, "deny",
				[]string{"deny", "allow"}[i%2]), "a.example", fmt.Sprintf("b%d.example", i))
			conformance.WantProblem(t,
				s.Send(t, o.Method, o.Path, body, "Content-Type", "application/json"), 500,
				"INTERNAL_ERROR")
		}
	}
	rename("ALTER TABLE taken_away RENAME TO sandboxes")
}
