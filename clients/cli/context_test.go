package cli_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// keyed is a service that takes one key and remembers those that it was shown.
func keyed(t *testing.T, key string) (url string, shown func() []string) {
	t.Helper()
	var mu sync.Mutex
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("SERVICE-API-KEY"))
		if r.Header.Get("SERVICE-API-KEY") != key {
			answer(w, http.StatusUnauthorized, lifecycle.Error{Code: "UNAUTHORIZED", Message: "wrong key"})
			return
		}
		answer(w, http.StatusOK, lifecycle.SandboxList{Items: []lifecycle.Sandbox{}})
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return keys
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "directory", "contexts.json")
	env := map[string]string{"SANDBOX_CONTEXTS": file}
	first, _ := keyed(t, "key-one")
	second, seen := keyed(t, "key-two")

	got := runWith(t.Context(), env, "wrong\n", "login", first)
	if _, err := os.Stat(file); got.code != cli.ExitFailed || err == nil ||
		!strings.Contains(got.stderr, "login not saved") {
		t.Errorf("a wrong key: code %d, %q, file %v", got.code, got.stderr, err)
	}
	for name, service := range map[string][2]string{"a": {first, "key-one"}, "b": {second, "key-two"}} {
		if got := runWith(t.Context(), env, service[1]+"\n", "login", service[0], "--name", name); got.code != 0 {
			t.Fatalf("login: %s", got.stderr)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v (%v)", info.Mode(), err)
	}
	got = run(t.Context(), env, "context", "use", "b")
	if got.code != 0 || run(t.Context(), env, "ls").code != 0 {
		t.Errorf("the saved service is not used: %s", got.stderr)
	}
	got = run(t.Context(), env, "context", "ls", "-o", "json")
	if got.code != 0 || strings.Contains(got.stdout, "key-") || !strings.Contains(got.stdout, second) {
		t.Errorf("context ls: %s%s", got.stdout, got.stderr)
	}
	if got := run(t.Context(), env, "ls", "--context", "a"); got.code != 0 {
		t.Errorf("--context: %s", got.stderr)
	}

	// The environment wins; and another service never gets the key of a context.
	before := len(seen())
	env["SANDBOX_URL"] = second
	if run(t.Context(), env, "context", "use", "a"); run(t.Context(), env, "ls").code != cli.ExitFailed {
		t.Error("a service of the environment was shown the key of a context")
	}
	for _, key := range seen()[before:] {
		if key != "" {
			t.Errorf("the key %q went to another service", key)
		}
	}
	env["SERVICE_API_KEY"] = "key-two"
	if got := run(t.Context(), env, "ls"); got.code != 0 {
		t.Errorf("the environment: %s", got.stderr)
	}
	delete(env, "SANDBOX_URL")
	if got := run(t.Context(), env, "context", "rm", "b"); got.code != 0 {
		t.Errorf("context rm: %s", got.stderr)
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "key-two") {
		t.Errorf("a removed key is still in the file (%v):\n%s", err, text)
	}
}
