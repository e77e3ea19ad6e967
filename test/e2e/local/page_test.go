package local_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

// TestPage types what docs/local.md has for looking at a sandbox by hand, and then, once the
// service was killed, for removing everything.
func TestPage(t *testing.T) {
	t.Parallel()
	on := newMachines()
	s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true})
	prints := s.Idle()
	prints.Entrypoint = []string{"sh", "-c", "echo hello; exec sleep 1000"}
	id, paused := s.Running(t, prints), s.Running(t, s.Idle())
	s.Act(t, http.MethodPost, paused+"/pause", http.StatusAccepted)
	s.Await(t, paused, "Paused")
	if text := metrics(t, s); !strings.Contains(text, "\nsandbox_network_problem 0\n") {
		t.Errorf("the firewall is not looked at, or drops what sandboxes send:\n%s", text)
	}
	m := on.of(s.Instance)
	variables, look, remove := pageBlock(t, `K=$(printf`), pageBlock(t, `nft list table`), pageBlock(t, `ip link delete`)
	for _, change := range [][2]string{
		{"/var/lib/sandbox-server/local", m.Directory}, {"B=sandbox0", "B=" + m.Bridge}, {"5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11", id},
	} {
		if !strings.Contains(variables+look, change[0]) {
			t.Errorf("docs/local.md has no %q any more", change[0])
		}
		variables, look = strings.ReplaceAll(variables, change[0], change[1]), strings.ReplaceAll(look, change[0], change[1])
	}
	shown, err := shell(t, "set -e -o pipefail\n"+variables+look)
	if err != nil {
		t.Errorf("%v, after\n%s", err, shown)
	}
	for _, want := range []string{":44772 ", "hello\n", "sandbox-keeper", "table inet " + m.Bridge, "master " + m.Bridge, m.Directory + "/containers/"} {
		if !strings.Contains(shown, want) {
			t.Errorf("there is no %q in\n%s", want, shown)
		}
	}

	s.Kill()
	if running := m.Records(t, ""); len(running) != 2 {
		t.Fatalf("%d containers are left, want 2", len(running))
	}
	removed, _ := shell(t, variables+remove)            // a process may have ended before it is killed, or there is no DOCKER-USER: what is left counts
	for _, name := range localengine.EmptyDirectories { // left fails where one is missing
		if err := os.MkdirAll(m.Directory+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.CheckNothingLeft(t)
	if t.Failed() {
		t.Logf("what was typed to remove everything printed\n%s", removed)
	}
}

// pageBlock returns the one shell block of docs/local.md that has the text.
func pageBlock(t *testing.T, text string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/local.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, rest := range strings.Split(string(page), "\n```sh\n")[1:] {
		if block, _, _ := strings.Cut(rest, "\n```"); strings.Contains(block, text) {
			found = append(found, block+"\n")
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/local.md has %d shell blocks with %q, want 1", len(found), text)
	}
	return found[0]
}

// shell runs a script and returns what it prints.
func shell(t *testing.T, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, "bash", "-c", script).CombinedOutput()
	return string(output), err
}
