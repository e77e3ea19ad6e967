package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// made sends a request that makes something with a key, and returns the status, the id in the
// header and the body.
func (d *daemon) made(t *testing.T, path, key, content string) (status int, id string, data []byte) {
	t.Helper()
	response, data := d.askWith(t, path, key, content)
	return response.StatusCode, response.Header.Get("X-Command-ID"), data
}

// askWith sends a request with a key, and with an age if there is one.
func (d *daemon) askWith(t *testing.T, path, key, content string, age ...string) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+path, strings.NewReader(content))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	for _, value := range age {
		request.Header.Set("Idempotency-Age", value)
	}
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
	directory := filepath.Join(t.TempDir(), "later")
	request, err := json.Marshal(gen.CommandRequest{Command: "true", Cwd: &directory})
	must(t, err)
	if status, _, data := d.made(t, "/command", "k1", string(request)); status != http.StatusBadRequest {
		t.Fatalf("a directory that is missing: %d %s", status, data)
	}
	response, err := d.client.MakeDirectories(t.Context(), gen.PermissionByPath{directory: {}})
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
	wait.Until(t, "the terminal is forgotten", func() bool {
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

// TestRepeatedAfterARestart: execd is killed and started again between a request and its
// repetition. The command lives on, and must not be started twice.
func TestRepeatedAfterARestart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	encoded, err := json.Marshal(gen.CommandRequest{Command: "echo $$ >>" + file + "; exec sleep 1000", Background: new(true)})
	must(t, err)
	request, transport := string(encoded), newTransport(t)
	first := &child{}
	d := first.start(t, transport)
	begin := time.Now()
	age := func() string { return strconv.FormatInt(time.Since(begin).Milliseconds(), 10) }
	if status, _, data := d.made(t, "/command", "k1", request); status != http.StatusOK {
		t.Fatalf("%d %s", status, data)
	}
	var pid int
	wait.Until(t, "the command runs", func() bool {
		data, _ := os.ReadFile(file) // it is not there yet
		_, err := fmt.Sscanln(string(data), &pid)
		return err == nil
	})
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	first.kill()
	d = (&child{}).start(t, transport)
	for path, ask := range map[string]struct{ key, content string }{
		"/command": {"k1", request}, "/code": {"kc", `{"code":"1"}`}, "/code/context": {"kx", `{"language":"python"}`}, "/pty": {"kt", `{}`},
	} {
		response, data := d.askWith(t, path, ask.key, ask.content, age())
		if response.StatusCode != http.StatusConflict || !strings.Contains(string(data), "whether it took effect is not known") {
			t.Errorf("%s: %s %s", path, response.Status, data)
		}
	}
	if err := syscall.Kill(pid, 0); err != nil || read(t, file) != fmt.Sprintln(pid) {
		t.Errorf("of the command with the pid %d (%v) are left %q", pid, err, read(t, file))
	}

	// What this execd has made it knows, however old the request is.
	const short = `{"command":"true","background":true}`
	_, made, _ := d.made(t, "/command", "k2", short)
	response, data := d.askWith(t, "/command", "k2", short, "86400000")
	if again := response.Header.Get("X-Command-ID"); again != made || made == "" {
		t.Errorf("%q and %q: %s %s", made, again, response.Status, data)
	}
	// A request that was first sent to this execd, and did not arrive, is done.
	wait.Until(t, "execd has run for a second longer", func() bool {
		response, _ := d.askWith(t, "/command", "k3", short, "100")
		return response.StatusCode == http.StatusOK
	})
}

func TestAgesAreBounded(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, age := range []string{"-1", "86400001", "1.5", "x", ""} {
		for _, path := range []string{"/command", "/code", "/code/context", "/pty"} {
			response, data := d.askWith(t, path, "k1", `{"command":"true","code":"1","language":"python"}`, age)
			if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(data), "header Idempotency-Age") {
				t.Errorf("%s with the age %q: %s %s", path, age, response.Status, data)
			}
		}
	}
}
