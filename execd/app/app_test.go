package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/openapi/document"
	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	token       = "open-sesame"
)

// daemon is an execd that serves until its test ends, or stop is called.
type daemon struct {
	address string
	url     string
	client  *gen.Client
	http    *http.Client
	log     *journal
	stop    context.CancelFunc
	stopped chan error
}

func start(t *testing.T, settings config.Settings) *daemon {
	t.Helper()
	return startOn(t, app.Machine{}, settings)
}

func startOn(t *testing.T, machine app.Machine, settings config.Settings) *daemon {
	t.Helper()
	settings.Host, settings.CommandLogLimit = "127.0.0.1", 1<<30
	log := &journal{}
	execd, err := app.NewOn(machine, settings, zerolog.New(log))
	must(t, err)
	d := &daemon{address: execd.Addr(), url: "http://" + execd.Addr(), log: log, stopped: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	go func() {
		d.stopped <- execd.Run(ctx)
		close(d.stopped)
	}()
	t.Cleanup(func() {
		stop()
		must(t, wait.For(t, "the end of the daemon", d.stopped))
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	d.http = &http.Client{Transport: transport, Timeout: wait.Patience()}
	d.client, err = gen.NewClient(d.url, gen.WithHTTPClient(d.http), gen.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			r.Header.Set(tokenHeader, settings.AccessToken)
			return nil
		}))
	must(t, err)
	return d
}

// journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get asks with a token, or without when it is empty, and returns the status and the body.
func (d *daemon) get(t *testing.T, path, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, nil)
	must(t, err)
	if token != "" {
		request.Header.Set(tokenHeader, token)
	}
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(data)
}

func TestEveryOperationButPingNeedsTheToken(t *testing.T) {
	t.Parallel()
	doc, err := document.LoadExecd()
	must(t, err)
	d := start(t, config.Settings{AccessToken: token})
	servetest.EveryOperationNeedsKey(t, doc, d.url, "ping")
	for _, given := range []string{"", "open-sesam", "open-sesame2", "OPEN-SESAME"} {
		if status, body := d.get(t, "/metrics", given); status != http.StatusUnauthorized || !strings.Contains(body, `"UNAUTHORIZED"`) {
			t.Errorf("with token %q: status %d, %s", given, status, body)
		}
	}
	servetest.EveryOperationRefusesUnknownParameters(t, doc, d.url, http.Header{tokenHeader: {token}})
	if status, body := d.get(t, "/metrics", token); status != http.StatusOK {
		t.Errorf("with the token: status %d, %s", status, body)
	}
}

func TestWithoutATokenEverythingIsOpenAndSaysSo(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{})
	for _, given := range []string{"", "anything"} {
		if status, body := d.get(t, "/metrics", given); status != http.StatusOK {
			t.Errorf("with token %q: status %d, %s", given, status, body)
		}
	}
	if log := d.log.String(); !strings.Contains(log, "no access token") || !strings.Contains(log, `"warn"`) {
		t.Errorf("the log does not warn: %s", log)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	_, err = app.New(config.Settings{Host: "127.0.0.1", Port: taken.Addr().(*net.TCPAddr).Port}, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("the error is %v, want one that names the address", err)
	}
}

// TestProxy reaches a server in the sandbox through execd, and execd itself.
func TestProxy(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %q", r.URL, r.Header.Values(tokenHeader))
	}))
	defer server.Close()
	port := server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	d := start(t, config.Settings{AccessToken: token})
	own := d.address[strings.LastIndexByte(d.address, ':')+1:]
	closed := strconv.Itoa(loopback.RefusingPort(t))

	tests := []struct {
		name, path, token string
		status            int
		want              string
	}{
		{"with the token", "/proxy/" + port + "/a/b?c=d", token, 200, `/a/b?c=d []`},
		{"root", "/proxy/" + port, token, 200, `/ []`},
		{"without the token", "/proxy/" + port + "/", "", 401, "UNAUTHORIZED"},
		{"with a wrong token", "/proxy/" + port + "/", "wrong", 401, "UNAUTHORIZED"},
		{"nothing listens", "/proxy/" + closed + "/", token, 502, "PORT_NOT_LISTENING"},
		{"no port", "/proxy/http/", token, 400, "port"},
		{"documented port, open operation", "/proxy/44772/ping", "", 200, ""},
		{"documented port, without the token", "/proxy/44772/metrics", "", 401, "UNAUTHORIZED"},
		{"own port, open operation", "/proxy/" + own + "/ping", "", 200, ""},
		{"own port, without the token", "/proxy/" + own + "/metrics", "", 401, "UNAUTHORIZED"},
		{"own port, with the token", "/proxy/" + own + "/metrics", token, 200, "cpu_count"},
		{"own port, other spelling", "/proxy/0" + own + "/metrics", "", 401, "UNAUTHORIZED"},
		{"own port, then another, without the token", "/proxy/" + own + "/proxy/" + port + "/x", "", 401, "UNAUTHORIZED"},
		{"own port, then another", "/proxy/" + own + "/proxy/" + port + "/x", token, 200, `/x []`},
		{"own port twice", "/proxy/" + own + "/proxy/" + own + "/ping", token, 400, "PROXY_LOOP"},
		{"own port, no such path", "/proxy/" + own + "/nothing", token, 404, "NOT_FOUND"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status, body := d.get(t, test.path, test.token)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("status %d, %s; want %d, %s", status, body, test.status, test.want)
			}
		})
	}
}

// stream starts a command and returns its events once it has printed that it is ready.
func (d *daemon) stream(t *testing.T, line string) *sse.Reader {
	t.Helper()
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: line})
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	for events := sse.NewReader(response.Body, 1<<20); ; {
		data, err := events.Next()
		if err != nil {
			t.Fatalf("the command never became ready: %v", err)
		}
		if bytes.Contains(data, []byte(`"ready"`)) {
			return events
		}
	}
}

type terminal struct {
	Type      string
	ExitCode  *int `json:"exit_code"`
	Timestamp int64
}

// last reads a stream to its orderly end. It returns its last event, and how long after it the
// stream was open.
func last(t *testing.T, events *sse.Reader) (event terminal, stayed time.Duration) {
	t.Helper()
	for {
		data, err := events.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("the stream was cut: %v", err)
			break
		}
		event = terminal{}
		must(t, json.Unmarshal(data, &event))
	}
	// The event's own time, not that of its arrival: a busy machine may deliver it late.
	return event, time.Since(time.UnixMilli(event.Timestamp))
}

func TestGracefulShutdown(t *testing.T) {
	t.Parallel()
	const linger = 300 * time.Millisecond
	tests := []struct {
		name, line string
		code       int
	}{
		{"a command that ends on request", "echo ready; exec sleep 3600", 143},
		{"a command with last words", `trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done`, 7},
		{"a stubborn command", `trap '' TERM; echo ready; while :; do sleep 0.05; done`, 137},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := start(t, config.Settings{GracefulShutdownTimeout: linger})
			events := d.stream(t, test.line)
			d.stop()
			event, stayed := last(t, events)
			if event.Type != "error" || event.ExitCode == nil || *event.ExitCode != test.code {
				t.Errorf("the stream ended with %+v, want exit code %d", event, test.code)
			}
			if stayed < linger {
				t.Errorf("the stream stayed open for %v after its last event, want %v", stayed, linger)
			}
			if err := wait.For(t, "the end of the daemon", d.stopped); err != nil {
				t.Errorf("Run returned %v", err)
			}
			if log := d.log.String(); strings.Contains(log, "cut off") || strings.Contains(log, "cut short") {
				t.Errorf("a graceful stop cut something off: %s", log)
			}
			if connection, err := net.Dial("tcp", d.address); err == nil {
				connection.Close()
				t.Error("a stopped daemon accepts connections")
			}
		})
	}
}

func TestWatchesStayOpenAtShutdown(t *testing.T) {
	t.Parallel()
	const linger = 300 * time.Millisecond
	for name, open := range map[string]func(d *daemon) (*http.Response, error){
		"metrics": func(d *daemon) (*http.Response, error) { return d.client.WatchMetrics(t.Context()) },
		"files": func(d *daemon) (*http.Response, error) {
			return d.client.WatchFiles(t.Context(), &gen.WatchFilesParams{Path: t.TempDir()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, config.Settings{GracefulShutdownTimeout: linger})
			response, err := open(d)
			must(t, err)
			defer response.Body.Close()
			events := sse.NewReader(response.Body, 1<<20)
			_, err = events.Next()
			must(t, err)
			began := time.Now()
			d.stop()
			for err == nil {
				_, err = events.Next()
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("the stream was cut: %v", err)
			}
			if stayed := time.Since(began); stayed < linger {
				t.Errorf("the stream stayed open for %v, want %v", stayed, linger)
			}
			if err := wait.For(t, "the end of the daemon", d.stopped); err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

func TestShutdownWithoutLingering(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{})
	events := d.stream(t, "echo ready; sleep 60")
	watch, err := d.client.WatchMetrics(t.Context())
	must(t, err)
	defer watch.Body.Close()
	d.stop()
	if event, _ := last(t, events); event.Type != "error" {
		t.Errorf("the stream ended with %+v", event)
	}
	if _, err := io.ReadAll(watch.Body); err != nil {
		t.Errorf("the metrics were cut: %v", err)
	}
	if err := wait.For(t, "the end of the daemon", d.stopped); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestNewConnectionsAreRefusedWhileStreamsEnd(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{GracefulShutdownTimeout: 300 * time.Millisecond})
	refused := filepath.Join(t.TempDir(), "refused")
	events := d.stream(t, `trap 'echo stopping; until [ -e `+refused+` ]; do sleep 0.01; done; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
	d.stop()
	for {
		data, err := events.Next()
		must(t, err)
		if bytes.Contains(data, []byte(`"stopping"`)) {
			break
		}
	}
	// The command gets its signal at the moment at which the daemon stops to listen.
	for deadline := time.Now().Add(time.Minute); ; {
		connection, err := net.Dial("tcp", d.address)
		if err != nil {
			break
		}
		connection.Close()
		if time.Now().After(deadline) {
			t.Fatal("a stopping daemon accepts connections")
		}
	}
	must(t, os.WriteFile(refused, nil, 0o600))
	if event, _ := last(t, events); event.Type != "execution_complete" {
		t.Errorf("the stream ended with %+v", event)
	}
	if err := wait.For(t, "the end of the daemon", d.stopped); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// TestSecretsReachNoProcess: the tokens in the daemon's environment are not passed on.
func TestSecretsReachNoProcess(t *testing.T) {
	t.Setenv("JUPYTER_TOKEN", "a-jupyter-secret")
	t.Setenv("EXECD_ACCESS_TOKEN", "an-execd-secret")
	t.Setenv("OF_THE_USER", "kept")
	d := start(t, config.Settings{})
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "env"})
	must(t, err)
	defer response.Body.Close()
	command, err := io.ReadAll(response.Body)
	must(t, err)
	language := "python"
	response, err = d.client.RunCode(t.Context(), nil, gen.CodeRequest{Language: &language, Code: "import os; print(os.environ)"})
	must(t, err)
	defer response.Body.Close()
	cell, err := io.ReadAll(response.Body)
	must(t, err)
	for who, said := range map[string]string{"a command": string(command), "a kernel": string(cell)} {
		if !strings.Contains(said, "OF_THE_USER") {
			t.Errorf("%s does not get the environment: %s", who, said)
		}
		if strings.Contains(said, "secret") {
			t.Errorf("%s gets a secret: %s", who, said)
		}
	}
}

// TestKernelsHoldNoThread: the daemon has a fixed number of threads for what blocks; a fork bomb
// leaves it no others. A kernel that runs must not block one.
func TestKernelsHoldNoThread(t *testing.T) {
	d := start(t, config.Settings{})
	waiting := func() (threads int) {
		states, err := filepath.Glob("/proc/self/task/*/wchan")
		must(t, err)
		for _, state := range states {
			if function, err := os.ReadFile(state); err == nil && strings.HasPrefix(string(function), "do_wait") {
				threads++
			}
		}
		return threads
	}
	before := waiting()
	for range 3 {
		response, err := d.client.CreateContext(t.Context(), nil, gen.ContextRequest{Language: "python"})
		must(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("a context: %s", response.Status)
		}
	}
	if after := waiting(); after > before {
		t.Errorf("%d threads wait for a child, %d did before three kernels were started", after, before)
	}
}
