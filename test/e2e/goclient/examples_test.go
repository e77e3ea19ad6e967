package goclient_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/program"
)

// testExamples runs the programs in examples/ as their readers do.
func testExamples(t *testing.T, serviceURL string) {
	const root = "sandbox.internal/clients/go/examples/"
	directory := t.TempDir()
	check(t, program.Build(t.Context(), directory, root+"quickstart", root+"notebook"))
	for _, example := range []struct{ name, image, want string }{
		{"quickstart", busybox,
			"live: Hello, Ada\nlive: Hello, Grace\nexit code 0\nGrace\nAda\n"},
		{"notebook", python,
			"[1] \n[2] [0, 1, 4, 9, 16]\n30\n[3] IndexError: list index out of range\n"},
	} {
		t.Run(example.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			command := exec.CommandContext(limited(t), filepath.Join(directory, example.name),
				example.image)
			command.Env = append(os.Environ(), "SANDBOX_URL="+serviceURL,
				"SERVICE_API_KEY="+conformance.AdminKey)
			command.Stderr = &stderr
			output, err := command.Output()
			if err != nil || string(output) != example.want {
				t.Errorf("%v: %s\nprinted\n%s\nnot\n%s", err, stderr.String(), output, example.want)
			}
		})
	}
}
