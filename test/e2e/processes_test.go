package e2e_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// forkBomb fills the sandbox with shells that try to become more. All of them belong to the
// command.
const forkBomb = `bomb() { bomb & bomb & wait; }; bomb`

// TestForkBomb has a command start every process that the sandbox may have. Nothing of ours may end
// by that, and what cannot be done must say so.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Settings: "[docker]\npids_limit = 64\n"})
	id := s.Running(t, conformance.Limited(conformance.Request(baseImage, "sleep", "1000"), "1", "256Mi"))
	inside := s.Enter(t, id)
	// A process is the same as before if its id and its start are. The first one is process 1, the
	// second the daemon.
	const identities = `cut -d' ' -f1,22 /proc/1/stat /proc/$PPID/stat`
	before := inside.Run(t, identities)
	if before.Code != 0 || strings.Count(before.Stdout, "\n") != 2 {
		t.Fatalf("the processes are %+v", before)
	}
	background := true
	started, err := inside.Client.RunCommandWithResponse(t.Context(), nil,
		execd.CommandRequest{Command: forkBomb, Background: &background})
	if err != nil || started.StatusCode() != http.StatusOK {
		t.Fatalf("the bomb: %v, %v", started, err)
	}
	bomb := started.HTTPResponse.Header.Get("X-Command-ID")

	refused := func() bool {
		response, err := inside.Client.RunCommandWithResponse(t.Context(), nil,
			execd.CommandRequest{Command: "true", Background: &background})
		switch {
		case err != nil:
			t.Errorf("the daemon is gone: %v", err)
		case response.StatusCode() == http.StatusServiceUnavailable:
			conformance.Contains(t, string(response.Body), "SERVICE_UNAVAILABLE", "processes")
			return true
		case response.StatusCode() != http.StatusOK: // a process had just ended
			t.Errorf("%s: %s", response.Status(), response.Body)
		}
		return false
	}
	wait.Until(t, "the sandbox has no process left", refused)

	// The daemon goes on with everything that needs no process, and is asked for more at a time
	// than it has processors.
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 5 {
				refused()
				inside.Upload(t, "/tmp/uploaded", strings.Repeat("x", 64<<10))
				found, err := inside.Client.SearchFilesWithResponse(t.Context(),
					&execd.SearchFilesParams{Path: "/etc"})
				if err != nil || found.StatusCode() != http.StatusOK {
					t.Errorf("a search: %v, %v", found, err)
					return
				}
			}
		})
	}
	clients.Wait()

	ended, err := inside.Client.InterruptCommandWithResponse(t.Context(),
		&execd.InterruptCommandParams{ID: bomb})
	if err != nil || ended.StatusCode() != http.StatusOK {
		t.Fatalf("the end of the bomb: %v, %v", ended, err)
	}
	wait.Until(t, "commands run again", func() bool { return !refused() })
	wait.Until(t, "the bomb has ended", func() bool {
		status, err := inside.Client.GetCommandStatusWithResponse(t.Context(), bomb)
		return err == nil && status.JSON200 != nil && !status.JSON200.Running
	})
	if after := inside.Run(t, identities); after != before {
		t.Errorf("the processes were %+v and are %+v: one has ended and was started again", before,
			after)
	}
}
