package api_test

import (
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// TestArguments: with arguments the command is a program, and no shell reads either.
func TestArguments(t *testing.T) {
	t.Parallel()
	d := start(t)
	printed := d.run(t, gen.CommandRequest{Command: "printf", Args: []string{`%s|%s\n`, "$HOME", "a  b"}}).until("stdout").Text
	if want := "$HOME|a  b"; printed != want {
		t.Errorf("printed %q, want %q", printed, want)
	}
	response, answer := d.ask(t, "POST", "/command", `{"command":"exit 0","args":[]}`)
	if response.StatusCode != 400 || !strings.Contains(string(answer), `command: \"exit 0\" is no program`) {
		t.Errorf("a command line as a program: %s %s", response.Status, answer)
	}
}
