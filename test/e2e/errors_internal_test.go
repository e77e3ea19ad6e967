package e2e_test

import (
	"database/sql"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
)

// takeTablesAway takes the tables away under the running service, and puts them back.
func takeTablesAway(t *testing.T, s *conformance.Service, running, paused, ended string) {
	// the service's own driver
	database, err := sql.Open("sqlite", filepath.Join(s.Directory, "sandbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	execute := func(statement string) {
		t.Helper()
		if _, err := database.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	execute(
		"PRAGMA busy_timeout = 5000; ALTER TABLE sandboxes RENAME TO taken_away; ALTER TABLE events RENAME TO no_events; ALTER TABLE logs RENAME TO no_logs")
	operations := []conformance.Operation{{Name: "createSandbox", Method: "POST", Path: "/v1/sandboxes",
		Body: s.Body(t, nil)}}
	for _, o := range conformance.OperationsOn(running) {
		if slices.Contains([]string{"deleteSandbox", "pauseSandbox", "renewExpiration",
			"updateMetadata", "streamSandboxEvents"}, o.Name) {
			operations = append(operations, o)
		}
	}
	operations = append(operations, conformance.OperationsOn(paused)[3],
		conformance.Operation{Name: "streamEvents", Method: "GET", Path: "/v1/events", Body: ""},
		conformance.Operation{Name: "getLogs", Method: "GET", Path: "/v1/sandboxes/" + ended + "/logs",
			Body: ""})
	for _, o := range operations {
		t.Run(o.Name, func(t *testing.T) {
			trace := "trace-of-" + o.Name
			got := s.Send(t, o.Method, o.Path, o.Body, "X-Request-ID", trace)
			conformance.WantProblem(t, got, 500, "INTERNAL_ERROR", trace)
			for _, secret := range []string{"table", "SQL", "sandboxes", s.Directory, "save"} {
				if strings.Contains(got.Body, secret) {
					t.Errorf("the body %s shows the cause: %q", got.Body, secret)
				}
			}
			var line struct{ Level, Error string }
			lines := s.Log.With(trace, "no such table")
			if len(lines) == 0 || json.Unmarshal([]byte(lines[0]), &line) != nil ||
				line.Level != "error" {
				t.Errorf(
					"no line of the log at level error has the cause and the request id; those with the id: %q", s.Log.With(trace))
			}
		})
	}
	execute(
		"ALTER TABLE taken_away RENAME TO sandboxes; ALTER TABLE no_events RENAME TO events; ALTER TABLE no_logs RENAME TO logs")
	// What was refused did not happen, and the service works again.
	for id, state := range map[string]string{running: "Running", paused: "Paused"} {
		if got := s.Get(t, id); got.Status.State != state {
			t.Errorf("after the errors the sandbox is %s, want %s", got.Status.State, state)
		}
	}
	if got := s.Renew(t, running,
		time.Now().Add(30*time.Minute).Format(time.RFC3339)); got.Status != http.StatusOK {
		t.Errorf("renew once the store works again: %s", got)
	}
}
