package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	gen "sandbox.internal/gen/execd"
)

// made sends a request that makes something with a key, and returns the status, the id in the header and the body.
func (d *daemon) made(t *testing.T, path, key, content string) (status int, id string, data []byte) {
	t.Helper()
	response, data := d.askWith(t, path, key, content)
	return response.StatusCode, response.Header.Get("X-Command-ID"), data
}

func (d *daemon) askWith(t *testing.T, path, key, content string) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+path, strings.NewReader(content))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response, data
}

func TestRepeatedCommandsRunOnce(t *testing.T) {
	t.Parallel()
	d := start(t)
	file := filepath.Join(t.TempDir(), "runs")
	request, err := json.Marshal(gen.CommandRequest{Command: "echo run >>" + file + "; echo out"})
	must(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for range 8 {
		all.Go(func() {
			status, id, data := d.made(t, "/command", "k1", string(request))
			mu.Lock()
			defer mu.Unlock()
			if ids[id]++; status != http.StatusOK || len(data) == 0 {
				t.Errorf("status %d: %s", status, data)
			}
		})
	}
	all.Wait()
	if len(ids) != 1 || read(t, file) != "run\n" {
		t.Errorf("commands %v, which left %q", ids, read(t, file))
	}
	for id := range ids { // a repetition has all of the stream
		events := d.resume(t.Context(), t, id, 0).all(1)
		if joined(events, "stdout") != "out\n" {
			t.Errorf("the stream has %q", joined(events, "stdout"))
		}
	}
	if status, _, data := d.made(t, "/command", "k1", `{"command":"true"}`); status != http.StatusConflict {
		t.Errorf("another body: %d %s", status, data)
	}
	if status, _, data := d.made(t, "/pty", "k1", string(request)); status != http.StatusBadRequest && status != http.StatusConflict {
		t.Errorf("another operation: %d %s", status, data)
	}
}

func TestWhatWasNotMadeIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := start(t)
	folder := filepath.Join(t.TempDir(), "later")
	request, err := json.Marshal(gen.CommandRequest{Command: "true", Cwd: &folder})
	must(t, err)
	if status, _, data := d.made(t, "/command", "k1", string(request)); status != http.StatusBadRequest {
		t.Fatalf("a folder that is missing: %d %s", status, data)
	}
	response, err := d.client.MakeDirectories(t.Context(), gen.PermissionByPath{folder: {}})
	body(t, response, err)
	if status, _, data := d.made(t, "/command", "k1", string(request)); status != http.StatusOK {
		t.Errorf("once it is there: %d %s", status, data)
	}
}

func TestRepeatedTerminalIsOne(t *testing.T) {
	t.Parallel()
	d := start(t)
	const request = `{"command":"cat"}`
	_, _, first := d.made(t, "/pty", "k1", request)
	_, _, again := d.made(t, "/pty", "k1", request)
	_, _, other := d.made(t, "/pty", "k2", request)
	if string(first) != string(again) || string(first) == string(other) {
		t.Errorf("%s, %s and %s", first, again, other)
	}
	if status, _, data := d.made(t, "/pty", "k1", `{"command":"sh"}`); status != http.StatusConflict {
		t.Errorf("another body: %d %s", status, data)
	}
}

// TestRepeatedTerminalIsGone: what a key has made can be forgotten before the key is.
func TestRepeatedTerminalIsGone(t *testing.T) {
	t.Parallel()
	d := start(t)
	const request = `{"command":"true"}`
	_, _, data := d.made(t, "/pty", "k1", request)
	var first gen.TerminalAccepted
	must(t, json.Unmarshal(data, &first))
	eventually(t, "the terminal is forgotten", func() bool {
		d.terminal(t, gen.TerminalRequest{Command: new("true")})
		response, err := d.client.GetTerminal(t.Context(), first.ID)
		must(t, err)
		response.Body.Close()
		return response.StatusCode == http.StatusNotFound
	})
	if status, _, data := d.made(t, "/pty", "k1", request); status != http.StatusConflict || !strings.Contains(string(data), "is gone") {
		t.Errorf("%d %s", status, data)
	}
}
