package cli_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/loopback"

	"golang.org/x/tools/go/packages"

	"sandbox.internal/clients/cli"
)

// result is the output of one invocation.
type result struct {
	code           int
	stdout, stderr string
}

func run(ctx context.Context, env map[string]string, args ...string) result {
	return runWith(ctx, env, "", args...)
}

func runWith(ctx context.Context, env map[string]string, stdin string, args ...string) result {
	var stdout, stderr strings.Builder
	variable := func(name string) string {
		if value, ok := env[name]; ok || name != "SANDBOX_CONTEXTS" {
			return value
		}
		return "nowhere.json" // not those of who runs the tests
	}
	program := cli.Program{Env: variable, Stdin: strings.NewReader(stdin), Stdout: &stdout,
		Stderr: &stderr}
	code := program.Run(ctx, args)
	return result{code, stdout.String(), stderr.String()}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	const ok, usage, service = cli.ExitOK, cli.ExitUsage, cli.ExitService
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"no command", nil, ok, "The life of sandboxes:", ""},
		{"unknown command", []string{"fly"}, usage, "", `there is no command "fly"`},
		{"unknown subcommand", []string{"files", "mvv"}, usage, "", "did you mean mv?"},
		{"unknown flag", []string{"--fly"}, usage, "", "unknown flag: --fly"},
		{"unknown flag of a command", []string{"demo", "--fly"}, usage, "", "demo: unknown flag: --fly"},
		{"argument too many", []string{"demo", "now"}, usage, "", `demo: unexpected argument "now"`},
		{"argument missing", []string{"get"}, usage, "", "get: needs at least a SANDBOX"},
		{"output", []string{"ls", "-o", "xml"}, usage, "", "output: must be one of table, wide, json"},
		{"URL without a scheme", []string{"demo", "--url", "127.0.0.1:8080"}, usage, "",
			"url: must look like http://127.0.0.1:8080"},
		{"URL of another scheme", []string{"version", "--url", "ftp://a"}, usage, "", `not "ftp://a"`},
		{"help", []string{"help"}, ok, "demo", ""},
		{"help for a command", []string{"help", "demo"}, ok, "--image IMAGE", ""},
		{"help of a subcommand", []string{"files", "ls", "-h"}, ok, "--depth", ""},

		// As docker run has it.
		{"run without anything", []string{"run"}, service, "", "needs an IMAGE or a PROGRAM"},
		{"run on no terminal", []string{"run", "-it", "image"}, service, "", "is not a terminal"},
		{"run with an unknown flag", []string{"run", "--fly", "image"}, service, "", "unknown flag"},
		{"env", []string{"run", "-e", "=x", "image", "true"}, service, "", `not "=x"`},
		{"volume", []string{"create", "-v", "data", "image"}, usage, "", `not "data"`},
		{"volume's path", []string{"create", "-v", "data:rel", "image"}, usage, "", `not "data:rel"`},
		{"metadata", []string{"create", "-l", "team", "image"}, usage, "", `not "team"`},
		{"policy", []string{"create", "--policy", "/nowhere.yaml", "image"}, cli.ExitFailed, "",
			"no such file"},
		{"entrypoint twice", []string{"create", "--entrypoint", "a", "image", "b"}, usage, "", "twice"},
		{"publish", []string{"run", "-p", "99999", "image", "true"}, service, "", `not "99999"`},
		{"user", []string{"exec", "-u", "me:", "box", "true"}, service, "", `not ""`},
		{"filter", []string{"ls", "--filter", "name=a"}, usage, "", `not "name=a"`},
		{"state", []string{"wait", "box", "--for", "Happy"}, usage, "", `not "Happy"`},
		{"rm of nothing", []string{"rm"}, usage, "", "needs SANDBOX..., --filter or --all"},
		{"rm of all and one", []string{"rm", "--all", "box"}, usage, "", "only one of them"},
		{"cp between sandboxes", []string{"cp", "a:/x", "b:/y"}, usage, "", "one of SOURCE"},
		{"cp without a sandbox", []string{"cp", "x", "y"}, usage, "", "one of SOURCE"},
		{"port", []string{"url", "box", "0"}, usage, "", `not "0"`},
		{"bench", []string{"bench", "--mode", "slow", "image"}, usage, "", `not "slow"`},
		{"context", []string{"ls", "--context", "nowhere"}, usage, "", `no context "nowhere"`},
		{"since", []string{"logs", "box", "--since", "monday"}, usage, "", `not "monday"`},
		{"tail", []string{"logs", "box", "--tail", "x"}, usage, "", `tail: must be a whole number, not "x"`},
		{"timeout", []string{"create", "--timeout", "90", "image"}, usage, "",
			`timeout: must be a duration such as 90s or 10m, not "90"`},
		{"timeout too short", []string{"create", "--timeout", "5s", "image"}, usage, "",
			"timeout: must be from 1m to 24h, not 5s"},
		{"context of login", []string{"login", "--context", "work"}, usage, "", "use --name"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := run(t.Context(), map[string]string{"SANDBOX_URL": "http://127.0.0.1:1"}, test.args...)
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

// TestHelpFitsATerminal: of 80 columns. The texts about completion are cobra's.
func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	shown := 0
	var show func(command ...string)
	show = func(command ...string) {
		shown++
		help := run(t.Context(), nil, append(command, "--help")...).stdout
		inList := false
		for line := range strings.Lines(help) {
			line = strings.TrimSuffix(line, "\n")
			if cli.Cells(line) > 80 {
				t.Errorf("%q: %d columns: %s", command, cli.Cells(line), line)
			}
			fields := strings.Fields(line)
			inList = strings.HasSuffix(line, ":") && !strings.Contains(line, "Flags") || inList && line != ""
			if inList && len(fields) > 1 && strings.HasPrefix(line, "  ") && strings.Contains(strings.TrimSpace(line), "  ") &&
				fields[0] != "completion" && fields[0] != "help" {
				show(append(slices.Clone(command), fields[0])...)
			}
		}
	}
	show()
	if shown < 40 {
		t.Errorf("only %d commands were seen", shown)
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

// TestDoctorAsksWhetherTheServiceIsReady: a service that answers may still be unable to make
// sandboxes.
func TestDoctorAsksWhetherTheServiceIsReady(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code": "SERVICE_UNAVAILABLE", "message": "the container engine does not answer"}`)
		}
	}))
	t.Cleanup(service.Close)
	got := run(t.Context(), map[string]string{"SANDBOX_URL": service.URL}, "doctor")
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout, "fail  ready     the container engine does not answer\n") {
		t.Errorf("code %d, stdout %q", got.code, got.stdout)
	}
}

// TestDoctorListsGPUs: those that the service has found, and in one line that there are none.
func TestDoctorListsGPUs(t *testing.T) {
	t.Parallel()
	for gpus, want := range map[string]string{
		`{"kind": "example.org/gpu", "devices": ["example.org/gpu=0", "example.org/gpu=1"]}`: "" +
			"ok    gpus      2: example.org/gpu=0, example.org/gpu=1\n",
		`{"kind": "example.org/gpu", "devices": []}`: "" +
			"ok    gpus      none: no CDI specification of this machine has example.org/gpu\n",
		`{"kind": "example.org/gpu", "devices": [], "problem": "broken.yaml"}`: "warn  gpus      broken.yaml\n",
		`null`: "",
	} {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/version" {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"version": "1", "commit": "", "apiVersion": "v1",
					"engine": {"name": "local", "version": "crun 1.14", "gpus": %s}}`, gpus)
			}
		}))
		t.Cleanup(service.Close)
		got := run(t.Context(), map[string]string{"SANDBOX_URL": service.URL}, "doctor")
		lines := slices.DeleteFunc(slices.Collect(strings.Lines(got.stdout)), func(line string) bool {
			return !strings.Contains(line, " gpus ")
		})
		if !strings.Contains(got.stdout, "crun 1.14") || strings.Join(lines, "") != want {
			t.Errorf("%s: %q, of it %q, want %q", gpus, got.stdout, lines, want)
		}
	}
}

func TestWithoutService(t *testing.T) {
	t.Parallel()
	env := map[string]string{"SANDBOX_URL": "http://" + loopback.Refusing(t)}
	got := run(t.Context(), env, "version")
	if got.code != cli.ExitOK || !strings.Contains(got.stdout, "go1.") ||
		!strings.Contains(got.stdout, "no answer") {
		t.Errorf("version: code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	got = run(t.Context(), env, "doctor")
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout, "fail  service") ||
		!strings.Contains(got.stdout, "make run") {
		t.Errorf("doctor: code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	got = run(t.Context(), env, "exec", "box", "true")
	if got.code != cli.ExitService || !strings.Contains(got.stderr, "connection refused") {
		t.Errorf("exec: code %d, stderr %q", got.code, got.stderr)
	}
}

func TestManual(t *testing.T) {
	t.Parallel()
	directory := filepath.Join(t.TempDir(), "man1")
	if got := run(t.Context(), nil, "docs", directory); got.code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	for _, page := range []string{"sandbox.1", "sandbox-run.1", "sandbox-files-ls.1"} {
		text, err := os.ReadFile(filepath.Join(directory, page))
		if err != nil || !strings.Contains(string(text), ".TH") {
			t.Errorf("%s: %v\n%.200s", page, err, text)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := run(t.Context(), nil, "completion", shell); got.code != cli.ExitOK ||
			!strings.Contains(got.stdout, "__complete") {
			t.Errorf("%s: exit code %d: %s", shell, got.code, got.stderr)
		}
	}
}

// TestIsForOtherSystems: nothing of the tool is for Linux alone. Types are checked, because a build
// for two more systems takes minutes where the caches are empty.
func TestIsForOtherSystems(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"darwin", "windows"} {
		found, err := packages.Load(&packages.Config{
			Context: t.Context(),
			Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes |
				packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedFiles |
				packages.NeedCompiledGoFiles,
			Env: append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0"),
		}, "sandbox.internal/clients/cmd/sandbox", "sandbox.internal/clients/cli/...",
			"sandbox.internal/clients/go", "sandbox.internal/wire/sandboxhttp")
		if err != nil {
			t.Fatal(err)
		}
		if len(found) < 5 {
			t.Errorf("%s: only %d packages", system, len(found))
		}
		packages.Visit(found, nil, func(p *packages.Package) {
			for _, err := range p.Errors {
				t.Errorf("%s: %v", system, err)
			}
		})
	}
}
