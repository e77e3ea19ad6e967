package main_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// TestRepetitionToTheNextDaemon: the socket belongs to execd-init, so the repetition of a request
// is on its way before the next daemon is there. It does not start the command again.
func TestRepetitionToTheNextDaemon(t *testing.T) {
	t.Parallel()
	command := alone(t, "--host=127.0.0.1", "--port=0", "--graceful-shutdown-timeout=0s", "--access-token="+token, "--", "sleep", "1000")
	address := logged(t, startLogged(t, command))
	client, err := gen.NewClient("http://"+address, gen.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}),
		gen.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("X-EXECD-ACCESS-TOKEN", token)
			return nil
		}))
	must(t, err)
	runs := filepath.Join(command.Dir, "runs")
	request := gen.CommandRequest{Command: "echo run >>" + runs + "; sleep 1000", Background: new(true)}
	begin := time.Now()
	response, err := client.RunCommand(t.Context(), &gen.RunCommandParams{IdempotencyKey: new("k1")}, request)
	body(t, response, err)
	kill(t, command.Process.Pid, "serve")
	age := time.Since(begin).Milliseconds()
	response, err = client.RunCommand(t.Context(), &gen.RunCommandParams{IdempotencyKey: new("k1"), IdempotencyAge: &age}, request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusConflict || !strings.Contains(string(data), "whether it took effect is not known") {
		t.Errorf("after %d ms: %s %s", age, response.Status, data)
	}
	var written []byte
	wait.Until(t, "the command has written", func() bool {
		written, _ = os.ReadFile(runs) // it is not there yet
		return len(written) > 0
	})
	if string(written) != "run\n" {
		t.Fatalf("the command has written %q", written)
	}
}
