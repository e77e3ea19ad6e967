package openapi_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/openapi"
)

// The contracts as they were released last. A release replaces them (CONTRIBUTING.md, "Release a
// contract").
const released = "released"

// breaks asks oasdiff whether clients of the older contract are broken by the newer one, and
// returns what it says. Its version is pinned in a module file of its own, because it wants other
// versions of our libraries than we do.
func breaks(t *testing.T, older, newer string) (report string, broken bool) {
	t.Helper()
	tool := filepath.Join(released, "oasdiff.mod")
	for _, file := range []string{tool, older, newer} {
		// The go command repeats a cached result until a file that the test looked at has changed;
		// what a child process read does not count.
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tool,
		"oasdiff", "breaking", "--fail-on", "ERR", older, newer)
	// A race detector in GOFLAGS would build the tool again for nothing.
	command.Env = append(os.Environ(), "GOFLAGS=")
	out, err := command.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return string(out), false
	case errors.As(err, &failed) && failed.ExitCode() == 1 && strings.Contains(string(out), "error\t"):
		return string(out), true
	}
	t.Fatalf("%s: %v\n%s", command, err, out)
	return "", false
}

// TestNothingReleasedIsBroken holds today's contracts to what clients were promised.
func TestNothingReleasedIsBroken(t *testing.T) {
	for _, name := range []string{"lifecycle.yaml", "execd.yaml"} {
		if report, broken := breaks(t, filepath.Join(released, name), name); broken {
			t.Errorf("%s breaks clients of its released form; make the change one that old clients survive:\n%s", name, report)
		}
	}
}

// TestBreaksAreFound plants changes into a contract, to prove that the guard finds them, and lets
// compatible ones pass.
func TestBreaksAreFound(t *testing.T) {
	lifecycle, execd := string(openapi.Lifecycle()), string(openapi.Execd())
	// The timeout of a request: what a client sends. In an answer a bound breaks when it widens.
	const lives = "description: How many seconds the sandbox lives, counted from its creation.\n" +
		"          minimum: 60\n          maximum: "
	for name, change := range map[string]struct {
		contract, old, new string
		broken             bool
	}{
		"nothing":                       {lifecycle, "", "", false},
		"an operation is gone":          {lifecycle, "  /v1/sandboxes/{sandboxId}/resume:", "  /v1/sandboxes/{sandboxId}/continue:", true},
		"a field became required":       {lifecycle, "required: [timeout]\n      properties:\n        image:", "required: [timeout, env]\n      properties:\n        image:", true},
		"a bound became narrower":       {lifecycle, lives + "86400", lives + "3600", true},
		"a field of an answer is gone":  {lifecycle, "required: [id, image, status, metadata, entrypoint, expiresAt, createdAt]", "required: [id, image, status, metadata, entrypoint, expiresAt]", true},
		"a parameter became required":   {execd, "required: false\n          x-extension: true\n          description: The format of the answer", "required: true\n          x-extension: true\n          description: The format of the answer", true},
		"a type is another one":         {execd, "        mem_total_mib:\n          type: number", "        mem_total_mib:\n          type: string", true},
		"a value is accepted no longer": {lifecycle, "enum: [allow, deny]", "enum: [deny]", true},
		"a value that is new":           {execd, "enum: [file, directory, symlink, other]", "enum: [file, directory, symlink, socket, other]", true},
		"a new optional field":          {lifecycle, "        networkPolicy: {$ref", "        label: {type: string, description: A new field.}\n        networkPolicy: {$ref", false},
		"a bound became wider":          {lifecycle, lives + "86400", lives + "172800", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if change.old != "" && !strings.Contains(change.contract, change.old) {
				t.Fatalf("the contract no longer has %q", change.old)
			}
			directory := t.TempDir()
			older, newer := filepath.Join(directory, "older.yaml"), filepath.Join(directory, "newer.yaml")
			for file, content := range map[string]string{older: change.contract, newer: strings.Replace(change.contract, change.old, change.new, 1)} {
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if report, broken := breaks(t, older, newer); broken != change.broken {
				t.Errorf("broken is %t, want %t:\n%s", broken, change.broken, report)
			}
		})
	}
}
