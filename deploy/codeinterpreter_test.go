package deploy_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCodeInterpreterEntrypoint: the image has the entrypoint that clients of OpenSandbox name,
// which runs what it is given.
func TestCodeInterpreterEntrypoint(t *testing.T) {
	const copied = "COPY kernels/code-interpreter.sh /opt/code-interpreter/code-interpreter.sh\n"
	recipe, err := os.ReadFile("code-interpreter.Dockerfile")
	if err != nil || !strings.Contains(string(recipe), copied) {
		t.Errorf("the Dockerfile does not have %q: %v", copied, err)
	}
	const script = "kernels/code-interpreter.sh"
	if _, err := os.Stat(script); err != nil { // an input of this test
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), script, "printf", "%s|", "a b", "$HOME").CombinedOutput()
	if err != nil || string(out) != "a b|$HOME|" {
		t.Errorf("%q, %v", out, err)
	}
}
