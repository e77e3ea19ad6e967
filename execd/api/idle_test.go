package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

// quiet is after how long a sandbox of these tests is idle.
const quiet = 20 * time.Millisecond

// idleRefusals are requests about holds that must fail.
func idleRefusals(t *testing.T, d *daemon, transport *conform.Transport) []answer {
	bad := func(operation, name, target, body string, says ...string) answer {
		return answer{on: d, operation: operation, name: name, target: target, body: body, status: 400, code: "INVALID_REQUEST_BODY", says: says}
	}
	full := connect(t, start(t).url, transport)
	for range 100 {
		full.object(t, "POST", "/holds", `{"seconds":3600,"wakeAfterSeconds":3600}`)
	}
	for range 16 {
		full.idle(t)
	}
	refused := func(operation, target, body, says string) answer {
		return answer{on: full, operation: operation, name: body, target: target, body: body, status: 503, code: "SERVICE_UNAVAILABLE",
			says: []string{says}}
	}
	return []answer{
		bad("keepAwake", "no body", "POST /holds", "", "body", "required"),
		bad("keepAwake", "nothing asked for", "POST /holds", `{"name":"x"}`, "seconds", "wakeAfterSeconds"),
		bad("keepAwake", "no time", "POST /holds", `{"seconds":0}`, "body/seconds", "at least 1"),
		bad("keepAwake", "more than an hour", "POST /holds", `{"seconds":3601}`, "body/seconds", "at most 3600"),
		bad("keepAwake", "more than a year", "POST /holds", `{"wakeAfterSeconds":31536001}`, "body/wakeAfterSeconds", "at most"),
		bad("keepAwake", "an empty name", "POST /holds", `{"seconds":1,"name":""}`, "body/name", "1"),
		bad("watchIdle", "no time", "GET /idle/watch", "", "query parameter idleMilliseconds", "required"),
		bad("watchIdle", "a short time", "GET /idle/watch?idleMilliseconds=9", "", "query parameter idleMilliseconds", "at least 10"),
		{on: d, operation: "keepAwake", target: "POST /holds", body: `{"a":"` + strings.Repeat("x", 16<<20) + `"}`, status: 413,
			code: "REQUEST_TOO_LARGE", says: []string{"body", "at most"}},
		refused("keepAwake", "POST /holds", `{"seconds":1}`, "kept awake"),
		refused("keepAwake", "POST /holds", `{"wakeAfterSeconds":1}`, "woken"),
		refused("watchIdle", "GET /idle/watch?idleMilliseconds=10", "", "streams"),
		bad("freeze", "a short time", "POST /freeze?idleMilliseconds=9", "", "query parameter idleMilliseconds", "at least 10"),
		{on: full, operation: "freeze", name: "not idle", target: "POST /freeze?idleMilliseconds=10&wake=true", status: 409,
			code: "NOT_IDLE", says: []string{"GET /holds"}},
	}
}

// idleSuccesses calls every operation on holds once.
func idleSuccesses(t *testing.T, d *daemon) {
	d.idle(t)
	d.held(t)
	d.object(t, "POST", "/holds", `{"seconds":1}`)
}

// held reads what keeps the sandbox awake.
func (d *daemon) held(t *testing.T) gen.Holds {
	t.Helper()
	response, err := d.client.GetHolds(t.Context())
	var held gen.Holds
	must(t, json.Unmarshal(body(t, response, err), &held))
	return held
}

// kinds are the kinds of the holds, sorted.
func (d *daemon) kinds(t *testing.T) string {
	t.Helper()
	var kinds []string
	for _, hold := range d.held(t).Holds {
		kinds = append(kinds, string(hold.Kind))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// idle follows whether the sandbox is idle.
func (d *daemon) idle(t *testing.T) *stream {
	t.Helper()
	response, err := d.client.WatchIdle(t.Context(), &gen.WatchIdleParams{IdleMilliseconds: quiet.Milliseconds()})
	return d.stream(t, response, err)
}

// news returns the next event of whether the sandbox is idle.
func (s *stream) news() gen.IdleEvent {
	s.t.Helper()
	for {
		line, err := s.reader.ReadBytes('\n')
		must(s.t, err)
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		if err := s.contract.CheckEvent("IdleEvent", data); err != nil {
			s.t.Error(err)
		}
		var event gen.IdleEvent
		must(s.t, json.Unmarshal(data, &event))
		return event
	}
}

// wantNews expects an event: "idle", or "busy" with a kind.
func (s *stream) wantNews(want string) gen.IdleEvent {
	s.t.Helper()
	event := s.news()
	got := string(event.Type)
	if event.Kind != nil {
		got += " " + string(*event.Kind)
	}
	if got != want {
		s.t.Fatalf("the event is %q, want %q", got, want)
	}
	return event
}

// TestEveryWayInKeepsTheSandboxAwake: what begins is announced and listed, there is no idleness
// while it lasts, and there is after it.
func TestEveryWayInKeepsTheSandboxAwake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, busy, kinds string
		begin             func(t *testing.T, d *daemon) (end func())
	}{
		{"a command in the background", "request", "command", heldByCommand},
		{"a command with its stream", "request", "command request", heldByStream},
		{"a cell", "request", "code", heldByCell},
		{"a terminal with a viewer", "request", "request terminal", heldByViewer},
		{"an upload", "request", "request", heldByUpload},
		{"a watch of files", "request", "request", heldByFiles},
		{"a request to a port", "proxy", "proxy", heldByPort},
		{"a WebSocket of a port", "proxy", "proxy", heldByWebSocket},
		{"a terminal through the port of the daemon", "request", "request terminal", heldByOwnPort},
		{"a program that asks for it", "request", "keepAwake", heldByAsking},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			s := d.idle(t)
			s.wantNews("idle")
			end := c.begin(t, d)
			s.wantNews("busy " + c.busy)
			wait.Until(t, "what holds is listed", func() bool { return d.kinds(t) == c.kinds }, func() any { return d.kinds(t) })
			fresh := d.idle(t) // between two requests of the beginning the sandbox may have been idle
			var over atomic.Bool
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				time.Sleep(5 * quiet) // the sandbox is not idle in the meantime
				over.Store(true)
				end()
			}()
			fresh.wantNews("idle")
			if !over.Load() {
				t.Error("the sandbox was idle before the end")
			}
			wait.For(t, "the end of what holds", ended)
			if got := d.held(t); len(got.Holds) != 0 {
				t.Errorf("in the end there is %+v", got.Holds)
			}
		})
	}
}

func heldByCommand(t *testing.T, d *daemon) func() {
	id := d.background(t, "exec sleep 1000")
	return func() { d.interrupt(t, id) }
}

func heldByStream(t *testing.T, d *daemon) func() {
	s := d.run(t, gen.CommandRequest{Command: "exec cat", Stdin: new(true)})
	id := s.until("init").Text
	return func() {
		d.put(t, id, "", 0, true, http.StatusOK)
		s.all(2)
	}
}

// heldByCell has a kernel wait for a file.
func heldByCell(t *testing.T, d *daemon) func() {
	id := d.newContext(t, "python")
	file := filepath.Join(t.TempDir(), "go-on")
	s := d.cell(t, id, fmt.Sprintf("import os, time\nprint('begun')\nwhile not os.path.exists(%q): time.sleep(0.01)", file))
	s.until("stdout")
	s.response.Body.Close() // the cell goes on
	return func() { write(t, file, "") }
}

func heldByViewer(t *testing.T, d *daemon) func() {
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	v := d.attach(t, id)
	return func() { v.connection.CloseNow() }
}

func heldByOwnPort(t *testing.T, d *daemon) func() {
	_, port, _ := strings.Cut(strings.TrimPrefix(d.url, "http://"), ":")
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	v := d.attachAt(t, d.url+"/proxy/"+port+"/pty/"+id+"/attach", &http.Client{Transport: plain, Timeout: wait.Patience()})
	return func() { v.connection.CloseNow() }
}

// heldByUpload sends a file of which the end comes last.
func heldByUpload(t *testing.T, d *daemon) func() {
	whole := upload(filepath.Join(t.TempDir(), "file"), "content")
	reader, writer := io.Pipe()
	sent := make(chan error, 1)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/files/upload", reader)
	must(t, err)
	request.Header.Set("Content-Type", formType["Content-Type"])
	go func() {
		response, err := d.http.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		sent <- err
	}()
	_, err = io.WriteString(writer, whole[:len(whole)/2])
	must(t, err)
	return func() {
		_, err := io.WriteString(writer, whole[len(whole)/2:])
		if err == nil {
			err = writer.Close()
		}
		if err != nil {
			t.Error(err)
		}
		if err := wait.For(t, "the answer to the upload", sent); err != nil {
			t.Error(err)
		}
	}
}

func heldByFiles(t *testing.T, d *daemon) func() {
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	d.watch(ctx, t, t.TempDir(), false).file()
	return leave
}

// heldByPort asks a server of the sandbox that answers late.
func heldByPort(t *testing.T, d *daemon) func() {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	answered := make(chan error, 1)
	url := d.url + "/proxy/" + server.URL[strings.LastIndex(server.URL, ":")+1:] + "/"
	go func() {
		response, err := wait.Client().Get(url)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	return func() {
		close(release)
		if err := wait.For(t, "the answer of the port", answered); err != nil {
			t.Error(err)
		}
	}
}

func heldByWebSocket(t *testing.T, d *daemon) func() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // the client reports it
		}
		defer connection.CloseNow()
		_, _, _ = connection.Read(r.Context()) // until the client leaves
	}))
	t.Cleanup(server.Close)
	ctx := wait.Context(t)
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	connection, _, err := websocket.Dial(ctx, d.url+"/proxy/"+server.URL[strings.LastIndex(server.URL, ":")+1:]+"/",
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: plain, Timeout: wait.Patience()}})
	must(t, err)
	return func() { connection.CloseNow() }
}

// heldByAsking asks for an hour, and then for a second in its place.
func heldByAsking(t *testing.T, d *daemon) func() {
	d.object(t, "POST", "/holds", `{"seconds":3600,"name":"poller"}`).wantTime(t, "until")
	if hold := d.held(t).Holds[0]; hold.ID != "poller" {
		t.Errorf("the hold is %+v", hold)
	}
	return func() {
		if response, data := d.ask(t, "POST", "/holds", `{"seconds":1,"name":"poller"}`); response.StatusCode != http.StatusOK {
			t.Errorf("%d %s", response.StatusCode, data)
		}
	}
}

// TestWatchingKeepsNothingAwake: the probes and streams by which a sandbox is watched are no holds.
func TestWatchingKeepsNothingAwake(t *testing.T) {
	t.Parallel()
	d := start(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(d.url, "http://"), ":")
	s := d.idle(t)
	s.wantNews("idle")
	for _, prefix := range []string{"", "/proxy/" + port} {
		for _, path := range []string{"/ping", "/metrics", "/activity", "/holds", "/no-such-path", "/e2b/health"} {
			response, err := wait.Client().Get(d.url + prefix + path)
			must(t, err)
			response.Body.Close()
		}
		for _, path := range []string{"/metrics/watch", "/activity/watch", "/idle/watch?idleMilliseconds=10"} {
			response, err := wait.Client().Get(d.url + prefix + path)
			must(t, err)
			t.Cleanup(func() { response.Body.Close() })
		}
	}
	d.freeze(t)
	d.thaw(t)
	if got := d.held(t); len(got.Holds) != 0 || got.IdleMilliseconds == 0 {
		t.Errorf("there is %+v", got)
	}
	d.run(t, gen.CommandRequest{Command: "true"}).all(1)
	s.wantNews("busy request") // the first since the beginning
	s.wantNews("idle")
}

// TestTimeToWakeAt: the next idleness has it, and so has the list.
func TestTimeToWakeAt(t *testing.T) {
	t.Parallel()
	d := start(t)
	s := d.idle(t)
	if at := s.wantNews("idle").WakeAt; at != nil {
		t.Errorf("the sandbox is to be woken at %v", at)
	}
	granted := d.object(t, "POST", "/holds", `{"wakeAfterSeconds":3600}`)
	if granted["until"] != nil {
		t.Errorf("granted was %v", granted)
	}
	granted.wantTime(t, "wakeAt")
	s.wantNews("busy request")
	at := s.wantNews("idle").WakeAt
	if listed := d.held(t); at == nil || listed.WakeAt == nil || !at.Equal(*listed.WakeAt) || granted["wakeAt"] != at.Format(time.RFC3339Nano) {
		t.Errorf("granted was %v, the event has %v, and the list %v", granted["wakeAt"], at, listed.WakeAt)
	}
}

// TestRequestOnItsWayKeepsTheSandboxAwake: a sandbox is not idle while a part of a request has
// arrived, whose rest has not.
func TestRequestOnItsWayKeepsTheSandboxAwake(t *testing.T) {
	t.Parallel()
	d := start(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /ports HTTP/1.1\r\nHo")
	must(t, err)
	s := d.idle(t)
	var over atomic.Bool
	sent := make(chan error, 1)
	go func() {
		time.Sleep(5 * quiet) // the sandbox is not idle in the meantime
		over.Store(true)
		_, err := io.WriteString(conn, "st: x\r\n\r\n")
		sent <- err
	}()
	s.wantNews("idle")
	if !over.Load() {
		t.Error("the sandbox was idle while a request was on its way")
	}
	must(t, wait.For(t, "the rest of the request", sent))
}

// TestIdleStreamsLeaveNothing: streams end while commands begin and end.
func TestIdleStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	execd := &child{}
	d := execd.start(t, newTransport(t))
	before := execd.atRest(t, d)
	for range 20 {
		var streams []*http.Response
		wait.Until(t, "so many streams of the round before have ended that eight can begin", func() bool {
			for len(streams) < 8 {
				response, err := d.client.WatchIdle(t.Context(), &gen.WatchIdleParams{IdleMilliseconds: quiet.Milliseconds()})
				must(t, err)
				if response.StatusCode != http.StatusOK {
					response.Body.Close()
					return false
				}
				streams = append(streams, response)
			}
			return true
		})
		d.run(t, gen.CommandRequest{Command: "true"}).all(1)
		for _, response := range streams {
			response.Body.Close()
		}
		d.run(t, gen.CommandRequest{Command: "true"}).all(1)
	}
	wait.Until(t, "no hold is left", func() bool { return d.kinds(t) == "" })
	execd.backTo(t, before)
}
