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
)

// networkOperations are the operations that need a sidecar.
var networkOperations = []string{
	"getNetworkPolicy", "replaceNetworkPolicy", "mergeNetworkPolicyRules", "deleteNetworkPolicyRules", "listNetworkDecisions", "proposeNetworkPolicy",
}

func operationsOnNetwork(id string) []operation {
	path := "/v1/sandboxes/" + id
	return []operation{
		{"getNetworkPolicy", "GET", path + "/network-policy", ""},
		{"replaceNetworkPolicy", "PUT", path + "/network-policy", `{"defaultAction":"deny"}`},
		{"mergeNetworkPolicyRules", "PATCH", path + "/network-policy", `[{"action":"allow","target":"a.example"}]`},
		{"deleteNetworkPolicyRules", "DELETE", path + "/network-policy", `["a.example"]`},
		{"listNetworkDecisions", "GET", path + "/network-decisions", ""},
		{"proposeNetworkPolicy", "GET", path + "/network-decisions/proposal", ""},
	}
}

// TestErrorsOfNetworkOperations provokes what the contract declares for the operations that need a sidecar, as TestErrors does for all
// others.
func TestErrorsOfNetworkOperations(t *testing.T) {
	t.Parallel()
	s := start(t, plan{
		settings: "[egress]\nimage = \"" + egressImage + "\"\nupstream = [\"192.0.2.1\"]\n",
		keys: []config.Key{
			{Name: "other", SHA256: digest(otherKey), Role: config.RoleUser},
			{Name: "viewer", SHA256: digest(viewerKey), Role: config.RoleViewer},
			{Name: "slow", SHA256: digest(slowKey), Role: config.RoleViewer, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
		},
	})
	running, ended := s.running(t, idle()), s.create(t, idle())
	s.delete(t, ended)
	s.await(t, ended, "Terminated")

	for _, o := range operationsOnNetwork(running) {
		t.Run(o.name, func(t *testing.T) {
			if got := s.send(t, o.method, o.path, o.body, "Content-Type", "application/json"); got.status != http.StatusOK {
				t.Errorf("%s", got)
			}
			wantProblem(t, s.as(t, "").send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 401, "UNAUTHORIZED", keyHeader)
			wantProblem(t, s.as(t, otherKey).send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 403, "FORBIDDEN", "other")
			if o.method != http.MethodGet {
				wantProblem(t, s.as(t, viewerKey).send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 403, "FORBIDDEN", "viewer")
				wantProblem(t, s.send(t, o.method, o.path, `"neither a policy nor rules"`, "Content-Type", "application/json"), 400, "INVALID_REQUEST_BODY", "body")
				wantProblem(t, s.send(t, o.method, o.path, `["`+strings.Repeat("x", 1<<20)+`"]`, "Content-Type", "application/json"), 413, "REQUEST_TOO_LARGE", "body")
			}
		})
	}
	events := s.send(t, http.MethodGet, "/v1/sandboxes/"+running+"/network-decisions", "", "Accept", "text/event-stream", "Last-Event-ID", "x")
	wantProblem(t, events, 400, "INVALID_REQUEST_BODY", "Last-Event-ID")
	for _, o := range operationsOnNetwork("11111111-2222-4333-8444-555555555555") {
		wantProblem(t, s.send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 404, "SANDBOX_NOT_FOUND")
	}
	for _, o := range operationsOnNetwork(ended) {
		wantProblem(t, s.send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 409, "CONFLICT", "Terminated")
	}
	askTooOften(t, s, operationsOnNetwork("11111111-2222-4333-8444-555555555555"))
	t.Run("a store that fails", func(t *testing.T) { failStore(t, s, running) })
	t.Run("a sidecar that hangs", func(t *testing.T) {
		s.signalGuard(t, running, "STOP")
		concurrently(operationsOnNetwork(running), func(o operation) {
			wantProblem(t, s.send(t, o.method, o.path, o.body, "Content-Type", "application/json"), 503, "SERVICE_UNAVAILABLE")
		})
		s.signalGuard(t, running, "CONT")
	})
	checkProvoked(t, s, true)
	if !slices.Contains(s.conform.Seen(), "getNetworkPolicy 200") {
		t.Error("the operations were not recognised")
	}
}

// failStore takes the table of the records away while policies are changed.
func failStore(t *testing.T, s *service, id string) {
	database, err := sql.Open("sqlite", filepath.Join(s.folder, "sandbox.db")) // the service's own driver
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	rename := func(statement string) {
		t.Helper()
		if _, err := database.ExecContext(t.Context(), "PRAGMA busy_timeout = 5000; "+statement); err != nil {
			t.Fatal(err)
		}
	}
	rename("ALTER TABLE sandboxes RENAME TO taken_away")
	for i, o := range operationsOnNetwork(id) {
		if o.method != http.MethodGet {
			// Something new each time: what changes nothing is not stored.
			body := strings.ReplaceAll(strings.ReplaceAll(o.body, "deny", []string{"deny", "allow"}[i%2]), "a.example", fmt.Sprintf("b%d.example", i))
			wantProblem(t, s.send(t, o.method, o.path, body, "Content-Type", "application/json"), 500, "INTERNAL_ERROR")
		}
	}
	rename("ALTER TABLE taken_away RENAME TO sandboxes")
}
