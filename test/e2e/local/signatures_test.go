package local_test

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	execd "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestFailureSignatures: none of the seven failures occurs that callers of a thousand sandboxes
// report of other services. Each test has several sandboxes, the service's proxy and, where it can
// matter, a service that is killed.
func TestFailureSignatures(t *testing.T) {
	t.Parallel()
	s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{Program: true})
	var boxes [6]string
	conformance.Concurrently([]int{0, 1, 2, 3, 4, 5}, func(i int) {
		boxes[i] = s.Create(t, conformance.Limited(conformance.Request(baseImage, "sleep", "1000"), "1", "128Mi"))
	})
	proxied := func(t *testing.T, id string) *conformance.Box {
		return conformance.ExecdThroughTheService(t, s.Inside(t, id, conformance.DaemonPort))
	}

	// The first request follows Running without a pause, and reads what the image's layers have.
	t.Run("502 after Running, and a file that is missing in the image", func(t *testing.T) {
		var digests [len(boxes)]string
		conformance.Concurrently([]int{0, 1, 2, 3, 4, 5}, func(i int) {
			s.Await(t, boxes[i], "Running")
			digests[i] = proxied(t, boxes[i]).Run(t, "find /usr/lib/python3* -name '*.py' | sort | xargs cat | sha256sum").Stdout
		})
		if len(digests[0]) != len("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef  -\n") ||
			slices.ContainsFunc(digests[:], func(d string) bool { return d != digests[0] }) {
			t.Errorf("the image's files have the digests %q", digests)
		}
	})

	t.Run("404 for an execution that lives", func(t *testing.T) {
		id := boxes[0]
		command := inBackground(t, proxied(t, id), "sleep 1000")
		looked := func(when string) {
			t.Helper()
			for _, inside := range []*conformance.Box{s.Enter(t, id), proxied(t, id)} {
				got, err := inside.Client.GetCommandStatusWithResponse(t.Context(), command)
				if err != nil || got.JSON200 == nil || !got.JSON200.Running {
					t.Errorf("%s the status is %v, %s", when, err, got.Body)
				}
			}
		}
		looked("after the start")
		s.Pause(t, id)
		s.Resume(t, id)
		looked("after a pause")
		s.Kill()
		s.Boot(t)
		looked("after a kill of the service")
	})

	// Bytes, and then silence, on connections of which others are closed and reused meanwhile.
	t.Run("a reset of a long stream, and of an idle connection", func(t *testing.T) {
		var others atomic.Int64
		conformance.Concurrently(boxes[:], func(id string) {
			inside := proxied(t, id)
			if got := inside.Run(t, "for i in 1 2 3 4 5; do head -c 300000 /dev/zero | tr '\\0' x; echo; sleep 1; done"); got.Code != 0 ||
				len(got.Stdout) != 5*300001 {
				t.Errorf("%d bytes came, exit code %d", len(got.Stdout), got.Code)
			}
			for range 20 { // on the connection that was idle
				others.Add(int64(len(inside.Run(t, "echo x").Stdout)))
			}
		})
		if got := others.Load(); got != int64(len(boxes))*20*2 {
			t.Errorf("%d bytes came from short commands", got)
		}
	})

	t.Run("already attached, of a terminal whose viewer or sandbox is gone", func(t *testing.T) {
		id := boxes[1]
		inside := s.Inside(t, id, conformance.DaemonPort)
		created, err := proxied(t, id).Client.StartTerminalWithResponse(t.Context(), nil, execd.TerminalRequest{})
		if err != nil || created.JSON200 == nil {
			t.Fatalf("create a terminal: %v, %s", err, created.Body)
		}
		path := "/pty/" + created.JSON200.ID + "/attach"
		attach := func(host string) (*websocket.Conn, *http.Response, error) {
			ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
			defer cancel()
			conn, response, err := websocket.Dial(ctx, "ws://"+host+inside.Prefix+path,
				&websocket.DialOptions{HTTPHeader: http.Header{conformance.KeyHeader: {s.Key}}})
			if conn != nil {
				t.Cleanup(func() { conn.CloseNow() })
			}
			return conn, response, err
		}
		for range 5 {
			conn, _, err := attach(inside.Host)
			if err != nil {
				t.Fatal(err)
			}
			conn.CloseNow() // without a closing handshake
		}
		viewer, _, err := attach(inside.Host)
		if err != nil {
			t.Fatal(err)
		}
		s.Delete(t, id)
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		defer cancel()
		for err == nil {
			_, _, err = viewer.Read(ctx)
		}
		if ctx.Err() != nil {
			t.Error("the viewer does not learn that the sandbox has ended")
		}
		s.Settled(t, id)
		if _, response, err := attach(inside.Host); err == nil || response == nil ||
			response.StatusCode != http.StatusConflict && response.StatusCode != http.StatusNotFound {
			t.Errorf("a terminal of a sandbox that has ended: %v, %v", err, response)
		}
	})

	t.Run("one heavy command ends the sandbox with 137", func(t *testing.T) {
		id := boxes[2]
		inside := proxied(t, id)
		conformance.Concurrently([]int{1, 2, 3}, func(int) {
			if got := inside.Run(t, "python3 -c 'x = bytearray(512 << 20)'"); got.Code != 137 || got.Reason != "OOM_KILLED" {
				t.Errorf("a command that needs too much memory: %+v", got)
			}
		})
		inside.Want(t, "echo alive", "alive\n")
	})

	t.Run("DELETE answers 404", func(t *testing.T) {
		deleted := func(id, when string) {
			t.Helper()
			if got := s.Send(t, http.MethodDelete, "/v1/sandboxes/"+id, ""); got.Status != http.StatusNoContent {
				t.Errorf("%s: %s", when, got)
			}
		}
		deleted(s.Create(t, s.Idle()), "while it is Pending")
		s.Pause(t, boxes[3])
		deleted(boxes[3], "while it is Paused")
		s.Kill()
		s.Boot(t)
		deleted(boxes[4], "after a kill of the service")
		// While it is Stopping, a second one succeeds; then it has ended, which is no 404.
		for i := range 5 {
			got := s.Send(t, http.MethodDelete, "/v1/sandboxes/"+boxes[4], "")
			if got.Status != http.StatusNoContent && got.Status != http.StatusConflict {
				t.Errorf("the same again, %d: %s", i, got)
			}
		}
	})
}

// inBackground starts a command in the background and returns its id.
func inBackground(t *testing.T, inside *conformance.Box, command string) string {
	t.Helper()
	background := true
	response, err := inside.Client.RunCommandWithResponse(t.Context(), nil, execd.CommandRequest{Command: command, Background: &background})
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil || response.JSON200.ID == "" {
		t.Fatalf("a command in the background: %s %s", response.Status(), response.Body)
	}
	return response.JSON200.ID
}
