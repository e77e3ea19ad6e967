package cli_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// TestSecretsOfKeys: the secret alone goes to the standard output, so that it can go into a file.
func TestSecretsOfKeys(t *testing.T) {
	t.Parallel()
	var asked lifecycle.CreateKeyRequest
	var rotated lifecycle.RotateKeyRequest
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		asked = lifecycle.CreateKeyRequest{}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		answer(w, http.StatusCreated, lifecycle.IssuedKey{Secret: "sbk_1", Key: lifecycle.Key{Name: asked.Name, Role: asked.Role, Source: "service", ExpiresAt: asked.ExpiresAt}})
	})
	mux.HandleFunc("POST /v1/keys/{name}/rotate", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&rotated)
		answer(w, http.StatusOK, lifecycle.IssuedKey{Secret: "sbk_2", Key: lifecycle.Key{Name: r.PathValue("name"), Role: "user", Source: "service"}})
	})
	service := httptest.NewServer(mux)
	defer service.Close()
	env := map[string]string{"SANDBOX_URL": service.URL}

	got := run(t.Context(), env, "key", "create", "ci", "--expires", "30d", "--max-sandboxes", "20", "--max-cpu", "2", "--max-timeout", "1h", "--rate", "5", "--take-over")
	if got.code != cli.ExitOK || got.stdout != "sbk_1\n" || !strings.Contains(got.stderr, "not shown again") {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	if asked.Name != "ci" || asked.Role != "user" || *asked.Limits.MaxSandboxes != 20 || *asked.Limits.MaxCPU != "2" || *asked.Limits.MaxTimeout != 3600 ||
		asked.RateLimit.RequestsPerSecond != 5 || !*asked.TakeOver || asked.Limits.MaxMemory != nil {
		t.Errorf("%+v", asked)
	}
	if days := time.Until(*asked.ExpiresAt).Hours() / 24; days < 29 || days > 30 {
		t.Errorf("key expires in %f days", days)
	}
	got = run(t.Context(), env, "key", "rotate", "team/ci", "--grace", "1h")
	if got.code != cli.ExitOK || got.stdout != "sbk_2\n" || *rotated.GraceSeconds != 3600 || rotated.ExpiresAt != nil || !strings.Contains(got.stderr, `"team/ci"`) {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	got = run(t.Context(), env, "key", "create", "ci", "-o", "json")
	var issued lifecycle.IssuedKey
	if err := json.Unmarshal([]byte(got.stdout), &issued); err != nil || issued.Secret != "sbk_1" || got.stderr != "" {
		t.Errorf("%v, stdout %q, stderr %q", err, got.stdout, got.stderr)
	}
	if asked.ExpiresAt != nil || asked.Limits != nil || asked.RateLimit != nil {
		t.Errorf("fields that no flag names are sent: %+v", asked)
	}
	for flag, values := range map[string][]string{"expires": {"soon", "-1d", "0d", "1000000d", "-5h", "2027-01-02"}, "role": {"root"}} {
		for _, value := range values {
			got := run(t.Context(), env, "key", "create", "ci", "--"+flag+"="+value)
			if got.code != cli.ExitUsage || !strings.Contains(got.stderr, flag) || !strings.Contains(got.stderr, value) {
				t.Errorf("%s %q: code %d, stderr %q", flag, value, got.code, got.stderr)
			}
		}
	}
}

// TestTableOfKeys: it fits a terminal of 80 columns, and pages are read to the last.
func TestTableOfKeys(t *testing.T) {
	t.Parallel()
	now := time.Now()
	keys := []lifecycle.Key{
		{Name: strings.Repeat("a long name ", 10), Role: "viewer", Source: "configuration"},
		{Name: "ci", Role: "user", Source: "service", ExpiresAt: new(now.Add(49 * time.Hour)), LastUsedAt: new(now.Add(-3*time.Hour - time.Minute)), CreatedAt: &now},
		{Name: "old\x1b[31m", Role: "admin", Source: "service", ExpiresAt: new(now.Add(-time.Hour)), CreatedAt: &now},
	}
	var removed []string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		list := lifecycle.KeyList{Items: keys[:2], Pagination: lifecycle.Pagination{HasNextPage: true}}
		if r.URL.Query().Get("page") != "1" {
			list = lifecycle.KeyList{Items: keys[2:]}
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("DELETE /v1/keys/{name}", func(w http.ResponseWriter, r *http.Request) {
		removed = append(removed, r.PathValue("name"))
		w.WriteHeader(http.StatusNoContent)
	})
	service := httptest.NewServer(mux)
	defer service.Close()
	env := map[string]string{"SANDBOX_URL": service.URL, "COLUMNS": "80"}
	got := run(t.Context(), env, "key", "ls")
	lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
	if got.code != cli.ExitOK || len(lines) != 4 {
		t.Fatalf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	if fields := strings.Fields(lines[0]); strings.Join(fields, " ") != "NAME ROLE SOURCE EXPIRES USED" {
		t.Errorf("%q", lines[0])
	}
	for i, words := range [][]string{{"NAME"}, {"viewer", "configuration", "never", "-"}, {"ci", "in 2d", "3h"}, {"expired"}} {
		if cli.Cells(lines[i]) > 80 || strings.Contains(lines[i], "\x1b") {
			t.Errorf("%d columns: %q", cli.Cells(lines[i]), lines[i])
		}
		for _, word := range words {
			if !strings.Contains(lines[i], word) {
				t.Errorf("%q is not in %q", word, lines[i])
			}
		}
	}
	if got := run(t.Context(), env, "key", "rm", "ci", "team/ci"); got.code != cli.ExitOK || strings.Join(removed, " ") != "ci team/ci" || got.stdout != "ci\nteam/ci\n" {
		t.Errorf("code %d, removed %q, stdout %q, stderr %q", got.code, removed, got.stdout, got.stderr)
	}
}
