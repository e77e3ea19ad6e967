package cli_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

// TestNamesOfEndedSandboxes: of several that have ended the newest is meant, and one that lives
// before all of them.
func TestNamesOfEndedSandboxes(t *testing.T) {
	t.Parallel()
	const (
		newest = "aaaa1111-0000-4000-8000-000000000001"
		older  = "aaaa2222-0000-4000-8000-000000000002"
		alive  = "bbbb3333-0000-4000-8000-000000000003"
		dead   = "bbbb4444-0000-4000-8000-000000000004"
	)
	env := listed(t, named(dead, "web", "Terminated"), named(newest, "job", "Failed"), named(older, "job", "Terminated"),
		named(alive, "web", "Paused"))
	for name, want := range map[string]string{"job": newest, "web": alive} {
		if got := run(t.Context(), env, "get", "-q", name); got.code != cli.ExitOK || got.stdout != want+"\n" {
			t.Errorf("%q: code %d, stdout %q, stderr %q; want %s", name, got.code, got.stdout, got.stderr, want)
		}
	}
	// The beginning of an id is not a name that two sandboxes have.
	if got := run(t.Context(), env, "get", "-q", "aaaa"); got.code == cli.ExitOK || !strings.Contains(got.stderr, "ambiguous") {
		t.Errorf("the beginning of two ids: code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

// TestPolicyThatSaysNothing is refused before anything is sent: the service would allow everything.
func TestPolicyThatSaysNothing(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	env := map[string]string{"SANDBOX_URL": server.URL}
	for name, text := range map[string]string{
		"empty": "", "blank": "\n\n", "comment": "# deny everything\n", "null": "null\n", "object": "{}", "yaml": "---\n",
		"no rules": `{"egress": []}`, "null rules": "egress:\n", "null action": "defaultAction:\n", "dry run": "dryRun: true\n",
		"second document": "---\n---\ndefaultAction: deny\n",
	} {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"create", "run"} {
			got := run(t.Context(), env, command, "--policy", file, "example/image:1")
			if got.code == cli.ExitOK || !strings.Contains(got.stderr, "policy: "+file+": must ") {
				t.Errorf("%s, %s: code %d, stderr %q", command, name, got.code, got.stderr)
			}
		}
	}
	// A variable that is not set.
	if got := run(t.Context(), env, "create", "--policy", "", "example/image:1"); got.code != cli.ExitUsage ||
		!strings.Contains(got.stderr, "policy: must be the name of a file") {
		t.Errorf("no file: code %d, stderr %q", got.code, got.stderr)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestLoginWithoutAnybodyToAsk: an input that ends at once is no key, and an empty line is that
// there is none.
func TestLoginWithoutAnybodyToAsk(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, lifecycle.Version{Version: "v1"})
	}))
	defer service.Close()
	for stdin, want := range map[string]struct {
		code           int
		stdout, stderr string
	}{
		"":      {cli.ExitFailed, "", "the standard input has no key, and nothing is saved"},
		"\n":    {cli.ExitOK, "default is the current context: " + service.URL + ", without a key\n", ""},
		"key\n": {cli.ExitOK, "default is the current context: " + service.URL + "\n", ""},
		"key":   {cli.ExitOK, "default is the current context: " + service.URL + "\n", ""},
	} {
		file := filepath.Join(t.TempDir(), "contexts.json")
		got := runWith(t.Context(), map[string]string{"SANDBOX_CONTEXTS": file}, stdin, "login", service.URL)
		if got.code != want.code || got.stdout != want.stdout || !strings.Contains(got.stderr, want.stderr) {
			t.Errorf("%q: code %d, stdout %q, stderr %q", stdin, got.code, got.stdout, got.stderr)
		}
		if _, err := os.Stat(file); (err == nil) != (want.code == cli.ExitOK) {
			t.Errorf("%q: the file of contexts: %v", stdin, err)
		}
	}
}

// TestLoginTriesTheKeyThatItSaves, and not another one that the environment of the process has.
func TestLoginTriesTheKeyThatItSaves(t *testing.T) {
	t.Setenv("SERVICE_API_KEY", "right")
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("SERVICE-API-KEY") != "right" {
			answer(w, http.StatusUnauthorized, lifecycle.Error{Code: "UNAUTHORIZED", Message: "the key is missing or wrong"})
			return
		}
		answer(w, http.StatusOK, lifecycle.Version{Version: "v1"})
	}))
	defer service.Close()
	for stdin, want := range map[string]int{"\n": cli.ExitFailed, "wrong\n": cli.ExitFailed, "right\n": cli.ExitOK} {
		env := map[string]string{"SANDBOX_CONTEXTS": filepath.Join(t.TempDir(), "contexts.json"), "SERVICE_API_KEY": "right"}
		if got := runWith(t.Context(), env, stdin, "login", service.URL); got.code != want {
			t.Errorf("%q: code %d, stdout %q, stderr %q", stdin, got.code, got.stdout, got.stderr)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	env := map[string]string{"SANDBOX_URL": "http://" + loopback.Refusing(t)}
	if got := run(t.Context(), env, "--version"); got.code != cli.ExitOK || !strings.HasPrefix(got.stdout, "sandbox ") ||
		!strings.Contains(got.stdout, " go1.") || strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestSizesOfMemory(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "512Mi": "512Mi", "1.5Gi": "1.5Gi", "1G": "1G", "100k": "100k", "512M": "512M",
		"1g": "1Gi", "512m": "512Mi", "2t": "2Ti", "4K": "4Ki", // docker's
		"512MB": "512M", "1GB": "1G", "1gb": "1G", "10KB": "10k", "1GiB": "1Gi", "512mib": "512Mi", "1gi": "1Gi", "1 GB": "1G",
	} {
		if got, err := cli.MemorySize(given); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", given, got, err, want)
		}
	}
	for given, says := range map[string]string{"512": "is it 512Mi?", "much": "such as 512Mi", "1Xi": "such as 512Mi", "-1g": "such as 512Mi", "1e9": "such as 512Mi"} {
		if got, err := cli.MemorySize(given); err == nil || !strings.Contains(err.Error(), "memory: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is %q, %v; want an error with %q", given, got, err, says)
		}
	}
}

// TestMarksOfDirection: a name that a sandbox's maker chose turns no line of a terminal around.
func TestMarksOfDirection(t *testing.T) {
	t.Parallel()
	const name = "a\u202ecod.exe\u2066b\u200f\ufeff\U000e0041\u0085"
	got, err := cli.EncodeJSON(map[string]string{name: name})
	const escaped = `a\u202ecod.exe\u2066b\u200f\ufeff\udb40\udc41\u0085`
	if want := `{"` + escaped + `":"` + escaped + "\"}\n"; err != nil || got != want {
		t.Errorf("JSON is %q, %v; want %q", got, err, want)
	}
	got, err = cli.WriteYAML(`{"` + name + `":"` + name + `"}`)
	if err != nil || strings.ContainsAny(got, "\u202e\u2066\u200f\ufeff\U000e0041\u0085") || !strings.Contains(got, `\U0000202e`) {
		t.Errorf("YAML is %q, %v", got, err)
	}
	back, err := cli.WriteYAML(got) // JSON is YAML, and so is this
	if err != nil || back != got {
		t.Errorf("read again: %q, %v; want %q", back, err, got)
	}
}

// TestOutputWithoutAReader: what head has closed is no failure to speak of.
func TestOutputWithoutAReader(t *testing.T) {
	t.Parallel()
	env := listed(t, named("aaaa1111-0000-4000-8000-000000000001", "web", "Running"))
	for _, format := range []string{"table", "wide", "json", "yaml", "name"} {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close()
		var stderr strings.Builder
		program := cli.Program{Env: func(name string) string { return env[name] }, Stdin: strings.NewReader(""), Stdout: writer, Stderr: &stderr}
		code := program.Run(t.Context(), []string{"ls", "-o", format})
		_ = writer.Close()
		if code != cli.ExitOutput || stderr.Len() > 0 {
			t.Errorf("%s: code %d, stderr %q", format, code, stderr.String())
		}
	}
}

// TestUntrustedCertificate is reported as what it is, and is not tried again.
func TestUntrustedCertificate(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	ctx := wait.Context(t)
	for _, args := range [][]string{{"ls"}, {"events"}, {"create", "example/image:1"}} {
		connections.Store(0)
		got := run(ctx, map[string]string{"SANDBOX_URL": server.URL}, args...)
		if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "certificate of the server is not trusted") || connections.Load() != 1 {
			t.Errorf("%q: code %d, %d connections, stderr %q", args, got.code, connections.Load(), got.stderr)
		}
	}
	got := run(ctx, map[string]string{"SANDBOX_URL": strings.Replace(server.URL, "https://", "http://", 1)}, "ls")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "the URL should begin with https://") {
		t.Errorf("without TLS: code %d, stderr %q", got.code, got.stderr)
	}
}

// TestPruneSaysWhatStays, and why.
func TestPruneSaysWhatStays(t *testing.T) {
	t.Parallel()
	for recent, want := range map[int]string{
		0: "0 B freed\n", 1: "0 B freed\n1 image stays: it was loaded or used in the last 10m\n",
		2: "0 B freed\n2 images stay: they were loaded or used in the last 10m\n",
	} {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, lifecycle.PrunedImages{Recent: &recent, GraceSeconds: new(600)})
		}))
		if got := run(t.Context(), map[string]string{"SANDBOX_URL": service.URL}, "image", "prune"); got.stdout != want {
			t.Errorf("%d: code %d, stdout %q, stderr %q; want %q", recent, got.code, got.stdout, got.stderr, want)
		}
		service.Close()
	}
}
