package cli_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// listed is a service with these sandboxes.
func listed(t *testing.T, sandboxes ...lifecycle.Sandbox) map[string]string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, lifecycle.SandboxList{Items: sandboxes})
	})
	for _, s := range sandboxes {
		mux.HandleFunc("GET /v1/sandboxes/"+s.ID, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, s)
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return map[string]string{"SANDBOX_URL": server.URL}
}

func named(id, name, state string) lifecycle.Sandbox {
	return lifecycle.Sandbox{ID: id, Metadata: lifecycle.Metadata{"name": name},
		Status: lifecycle.SandboxStatus{State: state}}
}

func TestNamesOfSandboxes(t *testing.T) {
	t.Parallel()
	const (
		one   = "aaaa1111-0000-4000-8000-000000000001"
		two   = "aaaa2222-0000-4000-8000-000000000002"
		three = "bbbb3333-0000-4000-8000-000000000003"
		four  = "cccc4444-0000-4000-8000-000000000004"
		five  = "dddd5555-0000-4000-8000-000000000005"
	)
	env := listed(t, named(one, "web", "Running"), named(two, "job", "Running"),
		named(three, "web", "Terminated"), named(four, "job", "Paused"), named(five, "aaaa1111", "Running"))
	for _, test := range []struct{ name, id, err string }{
		{one, one, ""},
		{"aaaa2", two, ""},
		{"web", one, ""}, // the other one has ended
		{"bbbb", three, ""},
		{"aaaa1111", five, ""}, // a name comes before the beginning of an id
		{"aaaa", "", `"aaaa" is ambiguous: ` + one + ` web (Running), ` + two + ` job (Running)`},
		{"job", "", `"job" is ambiguous: ` + two + ` job (Running), ` + four + ` job (Paused)`},
		{"nothing", "", `there is no sandbox "nothing"`},
		{"", "", "is empty"},
	} {
		got := run(t.Context(), env, "get", "-q", "--", test.name)
		if test.err == "" && (got.code != cli.ExitOK || got.stdout != test.id+"\n") ||
			test.err != "" && (got.code == cli.ExitOK || !strings.Contains(got.stderr, test.err)) {
			t.Errorf("%q: code %d, stdout %q, stderr %q", test.name, got.code, got.stdout, got.stderr)
		}
	}
}
