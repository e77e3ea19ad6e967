package e2e_test

import (
	"os"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestEntrypointCannotPassForTheDaemon: an entrypoint that is root answers on execd's port as soon
// as it can, and looks for the token. The sandbox becomes Running through its daemon all the same,
// and neither is the service led elsewhere nor the port taken.
func TestEntrypointCannotPassForTheDaemon(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	directory := t.TempDir()
	const script = `
		( while :; do printf 'HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/STOLEN\r\nContent-Length: 0\r\n\r\n' | nc -l -p 44772 -w 1 && echo >>/host/answered; sleep 0.05; done ) 2>/dev/null &
		while :; do
			grep -l EXECD_ACCESS_TOKEN /proc/[0-9]*/environ >>/host/found 2>/dev/null
			echo >>/host/rounds
		done`
	r := conformance.Request(s.Images.Busybox, "sh", "-c", script)
	r.Volumes = []lifecycle.Volume{{Name: "host", MountPath: "/host",
		Host: &lifecycle.HostSource{Path: directory}}}
	id := s.Running(t, r)
	read := func(name string) string {
		content, _ := os.ReadFile(directory + "/" + name) // empty while it is not there
		return string(content)
	}
	before := len(read("rounds"))
	wait.Until(t, "the entrypoint goes on looking",
		func() bool { return len(read("rounds")) > before+10 })
	if found, answered := read("found"), read("answered"); found != "" || answered != "" {
		t.Errorf("the token can be read in %q; the entrypoint has answered %d times", found,
			len(answered))
	}
	if got := s.Get(t, id).Status; strings.Contains(got.Message, "STOLEN") ||
		got.Reason != "CONTAINER_RUNNING" {
		t.Errorf("the status is %s: %s", got.Reason, got.Message)
	}
	inside := s.Enter(t, id)
	inside.Want(t, "echo from inside", "from inside\n")
	// The settings of the daemon are a client's to set, but for the token's.
	grace := conformance.Request(s.Images.Busybox, "sleep", "1000")
	grace.Env = lifecycle.Env{"EXECD_LOG_FILE": "/tmp/execd.log",
		"EXECD_API_GRACE_SHUTDOWN": "500ms"}
	inside = s.Enter(t, s.Running(t, grace))
	wait.Until(t, "the daemon writes its log where the client says, all of it", func() bool {
		return inside.Run(t, "grep -c 'execd listens' /tmp/execd.log").Stdout == "1\n"
	})
}
