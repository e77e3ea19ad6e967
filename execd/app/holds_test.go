package app_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

// held returns the kinds of what keeps the sandbox awake, sorted.
func (d *daemon) held(t *testing.T) string {
	t.Helper()
	response, err := d.client.GetHolds(t.Context())
	must(t, err)
	defer response.Body.Close()
	var list gen.Holds
	must(t, json.NewDecoder(response.Body).Decode(&list))
	var kinds []string
	for _, hold := range list.Holds {
		kinds = append(kinds, string(hold.Kind))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// TestClientsOfOpenSandboxKeepTheSandboxAwake: a command of a session does, until it has ended.
func TestClientsOfOpenSandboxKeepTheSandboxAwake(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	session := d.session(t, "")
	ran := make(chan int, 1)
	go func() {
		status, _ := d.opensandbox(t, "POST "+session+"/run", `{"command":"exec sleep 1000"}`)
		ran <- status
	}()
	// The request of the client is that to its operation and that to execd's.
	wait.Until(t, "the command runs", func() bool { return d.held(t) == "command request request" }, func() any { return d.held(t) })
	d.want(t, "DELETE "+session, "", http.StatusOK, "{}")
	if status := wait.For(t, "the end of the command", ran); status != http.StatusOK {
		t.Errorf("the command: %d", status)
	}
	wait.Until(t, "nothing is left", func() bool { return d.held(t) == "" }, func() any { return d.held(t) })
}

// TestIdleStreamEndsWithTheDaemon: the end of the stream is orderly, long after its last event.
func TestIdleStreamEndsWithTheDaemon(t *testing.T) {
	t.Parallel()
	still := app.Machine{Used: func() (time.Duration, error) { return 0, nil }}
	d := startOn(t, still, config.Settings{AccessToken: token})
	response, err := d.client.WatchIdle(t.Context(), &gen.WatchIdleParams{IdleMilliseconds: 10})
	must(t, err)
	defer response.Body.Close()
	_, err = io.ReadFull(response.Body, make([]byte, len("data: {\"type\":\"idle\"}\n\n")))
	must(t, err)
	time.Sleep(1100 * time.Millisecond) // the silence that must not fail the end: the write of an event has a second
	d.stop()
	if rest, err := io.ReadAll(response.Body); len(rest) > 0 || err != nil {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
}

// TestRequestWithoutTheTokenKeepsNothingAwake: a watch does not report it.
func TestRequestWithoutTheTokenKeepsNothingAwake(t *testing.T) {
	t.Parallel()
	still := app.Machine{Used: func() (time.Duration, error) { return 0, nil }}
	d := startOn(t, still, config.Settings{AccessToken: token})
	response, err := d.client.WatchIdle(t.Context(), &gen.WatchIdleParams{IdleMilliseconds: 10})
	must(t, err)
	defer response.Body.Close()
	events := bufio.NewScanner(response.Body)
	next := func(want string) {
		t.Helper()
		for events.Scan() {
			if data, ok := strings.CutPrefix(events.Text(), "data: "); ok {
				if data != want {
					t.Errorf("the event is %s, want %s", data, want)
				}
				return
			}
		}
		t.Fatalf("the stream ends: %v", events.Err())
	}
	next(`{"type":"idle"}`)
	for _, path := range []string{"/command", "/proxy/8080/", "/no-such-path"} {
		response, err := d.http.Get(d.url + path)
		must(t, err)
		response.Body.Close()
	}
	response, err = d.client.SearchFiles(t.Context(), &gen.SearchFilesParams{Path: t.TempDir()})
	must(t, err)
	response.Body.Close()
	next(`{"kind":"request","type":"busy"}`)
	next(`{"type":"idle"}`)
	if got := d.held(t); got != "" {
		t.Errorf("there is %s", got)
	}
}
