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
)

// testInternalErrors takes the tables away under the running service, and puts them back.
func testInternalErrors(t *testing.T, s *service, running, paused, ended string) {
	database, err := sql.Open("sqlite", filepath.Join(s.folder, "sandbox.db")) // the service's own driver
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
	execute("PRAGMA busy_timeout = 5000; ALTER TABLE sandboxes RENAME TO taken_away; ALTER TABLE events RENAME TO no_events; ALTER TABLE logs RENAME TO no_logs")
	operations := []operation{{"createSandbox", "POST", "/v1/sandboxes", body(t, nil)}}
	for _, o := range operationsOn(running) {
		if slices.Contains([]string{"deleteSandbox", "pauseSandbox", "renewExpiration", "updateMetadata", "streamSandboxEvents"}, o.name) {
			operations = append(operations, o)
		}
	}
	operations = append(operations, operationsOn(paused)[3],
		operation{"streamEvents", "GET", "/v1/events", ""},
		operation{"getLogs", "GET", "/v1/sandboxes/" + ended + "/logs", ""})
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			trace := "trace-of-" + o.name
			got := s.send(t, o.method, o.path, o.body, "X-Request-ID", trace)
			wantProblem(t, got, 500, "INTERNAL_ERROR", trace)
			for _, secret := range []string{"table", "SQL", "sandboxes", s.folder, "save"} {
				if strings.Contains(got.body, secret) {
					t.Errorf("the body %s shows the cause: %q", got.body, secret)
				}
			}
			var line struct{ Level, Error string }
			lines := s.log.with(trace, "no such table")
			if len(lines) == 0 || json.Unmarshal([]byte(lines[0]), &line) != nil || line.Level != "error" {
				t.Errorf("no line of the log at level error has the cause and the request id; those with the id: %q", s.log.with(trace))
			}
		})
	}
	execute("ALTER TABLE taken_away RENAME TO sandboxes; ALTER TABLE no_events RENAME TO events; ALTER TABLE no_logs RENAME TO logs")
	// What was refused did not happen, and the service works again.
	for id, state := range map[string]string{running: "Running", paused: "Paused"} {
		if got := s.get(t, id); got.Status.State != state {
			t.Errorf("after the errors the sandbox is %s, want %s", got.Status.State, state)
		}
	}
	if got := s.renew(t, running, time.Now().Add(30*time.Minute).Format(time.RFC3339)); got.status != http.StatusOK {
		t.Errorf("renew once the store works again: %s", got)
	}
}
