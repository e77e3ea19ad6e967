package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// TestFollowedTailAcrossARotation: what is printed while the last lines are looked for is shown,
// also when the engine forgets the beginning of the log meanwhile.
func TestFollowedTailAcrossARotation(t *testing.T) {
	t.Parallel()
	const begin, end, printed = "one\ntwo\n", "three\n", "four\nfive\n"
	var mu sync.Mutex
	kept, state := begin+end, "Running"
	var once sync.Once
	read := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/"+sandboxID, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answer(w, http.StatusOK, lifecycle.Sandbox{ID: sandboxID, Status: lifecycle.SandboxStatus{State: state}})
	})
	mux.HandleFunc("GET /v1/sandboxes/"+sandboxID+"/logs", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprint(w, kept)
		kept = strings.TrimPrefix(kept, begin)
		if r.URL.Query().Get("follow") != "true" {
			once.Do(func() { close(read) })
			return
		}
		_ = http.NewResponseController(w).Flush()
		mu.Unlock()
		// More is printed once the log was read without following it, in whichever order that is.
		select {
		case <-read:
		case <-r.Context().Done():
		}
		mu.Lock()
		_, _ = fmt.Fprint(w, printed)
		kept, state = kept+printed, "Terminated"
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	got := run(t.Context(), nil, "--url", server.URL, "logs", "-f", "--tail", "1", sandboxID)
	if got.code != cli.ExitOK || !strings.HasSuffix(got.stdout, "three\n"+printed) {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}
