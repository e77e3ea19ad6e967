package cli_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"sandbox.internal/server/cli"
)

// result is the output of one invocation.
type result struct {
	code           int
	stdout, stderr string
}

func run(ctx context.Context, env map[string]string, args ...string) result {
	var stdout, stderr strings.Builder
	code := cli.Run(ctx, args, func(name string) string { return env[name] }, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// unusedURL returns the URL of a port on which nothing listens.
func unusedURL(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return "http://" + listener.Addr().String()
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"no command", nil, cli.ExitUsage, "", "which command?"},
		{"unknown command", []string{"fly"}, cli.ExitUsage, "", `there is no command "fly"`},
		{"help for an unknown command", []string{"help", "fly"}, cli.ExitUsage, "",
			`there is no command "fly"`},
		{"unknown flag", []string{"--fly"}, cli.ExitUsage, "",
			"flag provided but not defined: -fly"},
		{"unknown flag of a command", []string{"demo", "--fly"}, cli.ExitUsage, "",
			"demo: flag provided but not defined: -fly"},
		{"argument too many", []string{"demo", "now"}, cli.ExitUsage, "",
			`demo: unexpected argument "now"`},
		{"URL without a scheme", []string{"demo", "--url", "127.0.0.1:8080"}, cli.ExitUsage, "",
			"url: must look like http://127.0.0.1:8080"},
		{"URL of another scheme", []string{"version", "--url", "ftp://a"}, cli.ExitUsage, "",
			`not "ftp://a"`},
		{"help", []string{"help"}, cli.ExitOK, "demo", ""},
		{"help flag", []string{"--help"}, cli.ExitOK, "version", ""},
		{"help for a command", []string{"help", "demo"}, cli.ExitOK, "--image IMAGE", ""},
		{"help flag of a command", []string{"demo", "-h"}, cli.ExitOK, "--image IMAGE", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := run(t.Context(), nil, test.args...)
			if got.code != test.code {
				t.Errorf("exit code %d, want %d", got.code, test.code)
			}
			if !strings.Contains(got.stdout, test.stdout) ||
				(test.stdout == "") != (got.stdout == "") {
				t.Errorf("stdout %q, want %q in it", got.stdout, test.stdout)
			}
			if !strings.Contains(got.stderr, test.stderr) ||
				(test.stderr == "") != (got.stderr == "") {
				t.Errorf("stderr %q, want %q in it", got.stderr, test.stderr)
			}
		})
	}
}

func TestHelpNeverShowsTheKey(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), map[string]string{"SERVICE_API_KEY": "secret-one"}, "--api-key",
		"secret-two", "help", "demo")
	if got.code != cli.ExitOK || strings.Contains(got.stdout+got.stderr, "secret") {
		t.Errorf("the help shows a key:\n%s%s", got.stdout, got.stderr)
	}
}

func TestVersionWithoutService(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), map[string]string{"SANDBOX_URL": unusedURL(t)}, "version")
	if got.code != cli.ExitOK || !strings.Contains(got.stdout, "go1.") ||
		!strings.Contains(got.stdout, "no answer") {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestDemoWithoutService(t *testing.T) {
	t.Parallel()
	url := unusedURL(t)
	got := run(t.Context(), nil, "--url", url, "demo")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "demo: create: ") ||
		!strings.Contains(got.stderr, "is the service running") {
		t.Errorf("code %d, stderr %q", got.code, got.stderr)
	}
	if !strings.Contains(got.stdout, "✗ create") {
		t.Errorf("stdout %q does not show the step that failed", got.stdout)
	}
}
