package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/metrics"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

func (d *daemon) terminal(t *testing.T, request gen.TerminalRequest) string {
	t.Helper()
	response, err := d.client.StartTerminal(t.Context(), nil, request)
	var accepted gen.TerminalAccepted
	must(t, json.Unmarshal(body(t, response, err), &accepted))
	return accepted.ID
}

func (d *daemon) terminalStatus(t *testing.T, id string) gen.Terminal {
	t.Helper()
	response, err := d.client.GetTerminal(t.Context(), id)
	var status gen.Terminal
	must(t, json.Unmarshal(body(t, response, err), &status))
	return status
}

// viewer is the client's side of an attached terminal.
type viewer struct {
	t          *testing.T
	connection *websocket.Conn
	contract   *conform.Transport
	text       []byte // since the last replay began
	exit       *int
	last       string // the last text message as it was sent
}

// attach attaches to a terminal; its messages are held to the contract.
func (d *daemon) attach(t *testing.T, id string) *viewer {
	t.Helper()
	return d.attachAt(t, d.url+"/pty/"+id+"/attach", d.http)
}

func (d *daemon) attachAt(t *testing.T, url string, client *http.Client) *viewer {
	t.Helper()
	connection, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: client})
	must(t, err)
	connection.SetReadLimit(-1)
	t.Cleanup(func() { connection.CloseNow() })
	return &viewer{t: t, connection: connection, contract: d.contract}
}

// next takes one message.
func (v *viewer) next() error {
	ctx, cancel := context.WithTimeout(v.t.Context(), wait.Patience())
	defer cancel()
	kind, data, err := v.connection.Read(ctx)
	if err != nil {
		return err
	}
	if kind == websocket.MessageBinary {
		v.text = append(v.text, data...)
		return nil
	}
	if err := v.contract.CheckEvent("TerminalNews", data); err != nil {
		v.t.Error(err)
	}
	var news gen.TerminalNews
	must(v.t, json.Unmarshal(data, &news))
	if news.Type == gen.TerminalNewsTypeReplay {
		v.text = nil
	}
	v.exit, v.last = news.ExitCode, string(data)
	return nil
}

func (v *viewer) until(text string) {
	v.t.Helper()
	for !bytes.Contains(v.text, []byte(text)) {
		if err := v.next(); err != nil {
			v.t.Fatalf("%q does not come: %v; the screen shows %q", text, err, v.text[max(0, len(v.text)-500):])
		}
	}
}

// end reads to the end and returns how the connection was closed.
func (v *viewer) end() websocket.StatusCode {
	v.t.Helper()
	for {
		if err := v.next(); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func (v *viewer) send(kind websocket.MessageType, text string) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), wait.Patience())
	defer cancel()
	must(v.t, v.connection.Write(ctx, kind, []byte(text)))
}

func (v *viewer) enter(text string) {
	v.t.Helper()
	v.send(websocket.MessageBinary, text)
}

func (v *viewer) say(text string) {
	v.t.Helper()
	v.send(websocket.MessageText, text)
}

func TestTerminalSession(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.terminal(t, gen.TerminalRequest{Rows: new(30), Cols: new(100)})
	one := d.attach(t, id)
	one.enter("stty size; echo a''b\r")
	one.until("30 100\r\nab\r\n")
	one.say(`{"type":"resize","rows":41,"cols":123}`)
	one.enter("stty size\r")
	one.until("41 123")

	two := d.attach(t, id)
	two.until("41 123")
	if status := d.terminalStatus(t, id); status.Viewers != 2 || status.Rows != 41 || !status.Running || status.ExitCode != nil {
		t.Errorf("the status is %+v", status)
	}
	one.connection.Close(websocket.StatusNormalClosure, "")
	two.enter("echo still-he''re; exit 7\r")
	two.until("still-here")
	if code := two.end(); code != websocket.StatusNormalClosure || two.exit == nil || *two.exit != 7 {
		t.Errorf("closed with %v, exit code %v", code, two.exit)
	}
	late := d.attach(t, id)
	late.until("still-here")
	if code := late.end(); code != websocket.StatusNormalClosure || late.exit == nil || *late.exit != 7 || !bytes.Equal(late.text, two.text) {
		t.Errorf("closed with %v, exit code %v; the replay differs: %t", code, late.exit, !bytes.Equal(late.text, two.text))
	}
	wait.Until(t, "every viewer has left", func() bool { return d.terminalStatus(t, id).Viewers == 0 })
}

func TestTerminalThroughTheProxy(t *testing.T) {
	t.Parallel()
	d := start(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(d.url, "http://"), ":")
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	v := d.attachAt(t, d.url+"/proxy/"+port+"/pty/"+id+"/attach", &http.Client{Transport: plain, Timeout: wait.Patience()})
	v.enter("hello\r")
	v.until("hello\r\nhello\r\n")
}

func TestTerminalPasteOfAMegabyte(t *testing.T) {
	t.Parallel()
	d := start(t)
	const size = 1 << 20
	script := fmt.Sprintf("stty raw -echo; echo ready; head -c %d | cksum; read x", size)
	v := d.attach(t, d.terminal(t, gen.TerminalRequest{Command: new("sh"), Args: []string{"-c", script}}))
	v.until("ready")
	v.enter(strings.Repeat("x", size)) // one message
	v.until(fmt.Sprintf(" %d\n", size))
}

func TestTerminalViewerThatStopsReading(t *testing.T) {
	t.Parallel()
	d := start(t)
	script := "read x; seq 1 1000000; exit 5" // more than all buffers of a connection hold
	id := d.terminal(t, gen.TerminalRequest{Command: new("sh"), Args: []string{"-c", script}})
	v := d.attach(t, id)
	v.enter("\r")
	wait.Until(t, "the program ends", func() bool { return !d.terminalStatus(t, id).Running })
	if code := v.end(); code != websocket.StatusNormalClosure || v.exit == nil || *v.exit != 5 {
		t.Errorf("closed with %v, exit code %v", code, v.exit)
	}
	if !bytes.HasSuffix(v.text, []byte("\n999999\r\n1000000\r\n")) {
		t.Errorf("the end of the output is missing: %q", v.text[max(0, len(v.text)-100):])
	}
}

// TestTerminalViewerThatLeavesWhileItsInputWaits: it is noticed, although nothing is read from it,
// and others can type again. One that is still there stays.
func TestTerminalViewerThatLeavesWhileItsInputWaits(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	script := "stty raw -echo; echo ready; dd bs=1 count=1 of=/dev/null 2>/dev/null; echo first; " +
		"while ! test -e go; do sleep 0.1; done; exec cat"
	id := d.terminal(t, gen.TerminalRequest{Command: new("sh"), Args: []string{"-c", script}, Cwd: &dir})
	leaves, stays := d.attach(t, id), d.attach(t, id)
	leaves.until("ready")
	stays.until("ready")
	leaves.enter(strings.Repeat("x", 256<<10)) // more than the kernel takes
	stays.until("first")                       // a byte of it was read: the daemon is writing the rest
	stays.enter("from the other")
	leaves.connection.CloseNow()
	wait.Until(t, "the viewer has left", func() bool { return d.terminalStatus(t, id).Viewers == 1 })
	time.Sleep(10 * time.Second) // the silence of several pings, after which the other viewer must still be there
	write(t, filepath.Join(dir, "go"), "")
	stays.until("from the other")
}

// A size of nothing is that of an emulator that is not shown: its viewer stays.
func TestTerminalSizeOfNothing(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat"), Rows: new(30), Cols: new(90)})
	v := d.attach(t, id)
	v.say(`{"type":"resize","rows":0,"cols":0}`)
	v.say(`{"type":"resize","rows":41,"cols":90}`)
	wait.Until(t, "the terminal has the size that came then", func() bool { return d.terminalStatus(t, id).Rows == 41 })
	if cols := d.terminalStatus(t, id).Cols; cols != 90 {
		t.Errorf("%d columns", cols)
	}
}

func TestTerminalBadMessages(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	for name, message := range map[string]string{
		"no JSON":       "ls\r",
		"another type":  `{"type":"kill","rows":1,"cols":1}`,
		"no size":       `{"type":"resize"}`,
		"no rows":       `{"type":"resize","rows":0,"cols":80}`,
		"too many rows": `{"type":"resize","rows":70000,"cols":80}`,
		"unknown field": `{"type":"resize","rows":1,"cols":1,"x":1}`,
		"too long":      strings.Repeat(" ", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			v := d.attach(t, id)
			v.say(message)
			if code := v.end(); code != websocket.StatusPolicyViolation {
				t.Errorf("closed with %v", code)
			}
		})
	}
	if !d.terminalStatus(t, id).Running {
		t.Error("the terminal has ended")
	}
}

// terminalRefusals are the errors of terminals.
func terminalRefusals(t *testing.T, d *daemon, transport *conform.Transport) []answer {
	terminals := terminal.New(terminal.Options{Clock: time.Now})
	terminals.Stop(context.Background())
	freezer, err := freeze.New(freeze.Options{})
	must(t, err)
	handler, err := api.New(api.Options{
		Freezer:   freezer,
		Commands:  command.New(command.Options{Clock: time.Now}),
		Files:     files.New(files.Options{}),
		Metrics:   metrics.New(metrics.Options{}),
		Terminals: terminals,
		Logger:    zerolog.Nop(),
	})
	must(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	stopped := connect(t, server.URL, transport)
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	bad := func(operation, name, target, body string, says ...string) answer {
		return answer{on: d, operation: operation, name: name, target: target, body: body, status: 400, code: "INVALID_REQUEST_BODY", says: says}
	}
	unknown := func(operation, target string) answer {
		return answer{on: d, operation: operation, target: target, status: 404, code: "NOT_FOUND", says: []string{"no-such-id"}}
	}
	return []answer{
		bad("startTerminal", "no body", "POST /pty", "", "body", "required"),
		bad("startTerminal", "unknown field", "POST /pty", `{"row":1}`, "body/row", "unknown field"),
		bad("startTerminal", "no rows", "POST /pty", `{"rows":0}`, "body/rows", "at least 1"),
		bad("startTerminal", "too many columns", "POST /pty", `{"cols":65536}`, "body/cols", "at most"),
		bad("startTerminal", "unknown program", "POST /pty", `{"command":"no-such-program"}`, "command", "no-such-program"),
		bad("startTerminal", "missing cwd", "POST /pty", `{"cwd":"/no/such/directory"}`, "cwd", "/no/such/directory"),
		bad("attachTerminal", "no WebSocket", "GET /pty/"+id+"/attach", "", "WebSocket"),
		{on: d, operation: "attachTerminal", target: "GET /pty/" + id + "/attach", status: 403, code: "FORBIDDEN", says: []string{"header Origin", "evil.example"},
			header: map[string]string{
				"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
				"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": "http://evil.example",
			}},
		unknown("attachTerminal", "GET /pty/no-such-id/attach"),
		unknown("getTerminal", "GET /pty/no-such-id"),
		unknown("killTerminal", "DELETE /pty/no-such-id"),
		{on: stopped, operation: "startTerminal", target: "POST /pty", body: `{}`, status: 503, code: "SERVICE_UNAVAILABLE", says: []string{"shutting down"}},
	}
}

// terminalSuccesses are what the operations on terminals are for.
func terminalSuccesses(t *testing.T, d *daemon) {
	id := d.terminal(t, gen.TerminalRequest{Command: new("cat")})
	v := d.attach(t, id)
	response, err := d.client.ListTerminals(t.Context())
	var list gen.Terminals
	must(t, json.Unmarshal(body(t, response, err), &list))
	if last := list[len(list)-1]; last.ID != id || !last.Running || last.Command[0] != "cat" || last.Rows != 24 || last.Cols != 80 {
		t.Errorf("the list ends with %+v", last)
	}
	response, err = d.client.KillTerminal(t.Context(), id)
	body(t, response, err)
	if code := v.end(); code != websocket.StatusNormalClosure || v.exit == nil || *v.exit != 129 {
		t.Errorf("closed with %v, exit code %v", code, v.exit)
	}
	if status := d.terminalStatus(t, id); status.Running || *status.ExitCode != 129 {
		t.Errorf("the status is %+v", status)
	}
}

func TestTerminalNeedsTheToken(t *testing.T) {
	t.Parallel()
	d := (&child{Args: []string{"--access-token=open-sesame"}}).start(t, newTransport(t))
	token := header("X-EXECD-ACCESS-TOKEN", "open-sesame")
	response, err := d.client.StartTerminal(t.Context(), nil, gen.TerminalRequest{Command: new("cat")}, token)
	var accepted gen.TerminalAccepted
	must(t, json.Unmarshal(body(t, response, err), &accepted))
	url := d.url + "/pty/" + accepted.ID + "/attach"
	_, refused, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: d.http})
	if err == nil || refused == nil || refused.StatusCode != http.StatusUnauthorized {
		t.Fatalf("attached without a token: %v, %v", refused, err)
	}
	connection, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{
		HTTPClient: d.http, HTTPHeader: http.Header{"X-Execd-Access-Token": {"open-sesame"}},
	})
	must(t, err)
	must(t, connection.Close(websocket.StatusNormalClosure, ""))
}

func TestTerminalOfAnotherUserWithATimeout(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.terminal(t, gen.TerminalRequest{
		Command: new("sh"), Args: []string{"-c", "id -u; id -g; sleep 1000"}, Cwd: new("/"),
		UID: new(int64(65534)), GID: new(int64(7)), Timeout: new(int64(500)),
	})
	v := d.attach(t, id)
	v.until("65534\r\n7\r\n")
	if code := v.end(); code != websocket.StatusNormalClosure || v.exit != nil {
		t.Errorf("closed with %d, exit code %v", code, v.exit)
	}
	if v.last != `{"type":"exit","exit_code":null}` {
		t.Errorf("the last message is %s", v.last)
	}
	if status := d.terminalStatus(t, id); status.Running || status.ExitCode != nil {
		t.Errorf("%+v", status)
	}
	response, err := d.client.StartTerminal(t.Context(), nil, gen.TerminalRequest{Timeout: new(int64(1 << 60))})
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("an endless timeout: %s", response.Status)
	}
}
