package app_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

// ptyClient is a client of OpenSandbox that is connected to a session with a terminal.
type ptyClient struct {
	t      *testing.T
	socket *websocket.Conn
	conn   net.Conn // below it
	output []byte
	at     int64  // the position of the last replay, -1 without one
	text   string // the text messages
	failed error
}

// pty makes a session and returns its path.
func (d *daemon) pty(t *testing.T, body string) string {
	t.Helper()
	status, text := d.opensandbox(t, "POST /pty", body)
	var made struct {
		ID string `json:"session_id"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusCreated || made.ID == "" {
		t.Fatalf("a session: %d %s", status, text)
	}
	return "/pty/" + made.ID
}

// dialPTY connects to a session. A handshake that is refused leaves the status and the body.
func (d *daemon) dialPTY(t *testing.T, path string) (client *ptyClient, status int, text string) {
	t.Helper()
	client = &ptyClient{t: t, at: -1}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		client.conn = conn
		return conn, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	socket, response, err := websocket.Dial(t.Context(), d.url+"/proxy/44772"+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport, Timeout: wait.Patience()},
		HTTPHeader: http.Header{http.CanonicalHeaderKey(tokenHeader): {token}, "X-Sandbox-Dialect": {"opensandbox"}},
	})
	if err != nil {
		if response == nil {
			t.Fatal(err)
		}
		var data bytes.Buffer
		_, _ = data.ReadFrom(response.Body)
		return nil, response.StatusCode, data.String()
	}
	socket.SetReadLimit(-1)
	t.Cleanup(func() { socket.CloseNow() })
	client.socket = socket
	return client, http.StatusSwitchingProtocols, ""
}

func (d *daemon) connect(t *testing.T, path string) *ptyClient {
	t.Helper()
	client, status, text := d.dialPTY(t, path)
	if client == nil {
		t.Fatalf("%s: %d %s", path, status, text)
	}
	return client
}

// connectOnceFree connects without taking over, once the client before has left for the daemon.
func (d *daemon) connectOnceFree(t *testing.T, path string) (client *ptyClient) {
	t.Helper()
	wait.Until(t, "the session is free", func() bool {
		client, _, _ = d.dialPTY(t, path)
		return client != nil
	})
	return client
}

// next takes one message.
func (c *ptyClient) next() bool {
	ctx, cancel := context.WithTimeout(c.t.Context(), wait.Patience())
	defer cancel()
	kind, data, err := c.socket.Read(ctx)
	switch {
	case err != nil:
		c.failed = err
		return false
	case kind == websocket.MessageText:
		c.text += string(data) + "\n"
	case data[0] == 1:
		c.output = append(c.output, data[1:]...)
	case data[0] == 3:
		c.at = int64(binary.BigEndian.Uint64(data[1:9]))
		c.output = append([]byte{}, data[9:]...)
	default:
		c.t.Errorf("a message that begins with %d", data[0])
	}
	return true
}

// until takes messages until the output has the text.
func (c *ptyClient) until(text string) {
	c.t.Helper()
	for !bytes.Contains(c.output, []byte(text)) {
		if !c.next() {
			c.t.Fatalf("%q does not come: %v; there are %q and %s", text, c.failed, c.output, c.text)
		}
	}
}

// end takes messages until the connection is closed.
func (c *ptyClient) end(code websocket.StatusCode, reason string) {
	c.t.Helper()
	for c.failed == nil && c.next() {
	}
	var closed websocket.CloseError
	if ok := asClose(c.failed, &closed); !ok || closed.Code != code || closed.Reason != reason {
		c.t.Fatalf("the connection ends with %v, want %d %s", c.failed, code, reason)
	}
}

func asClose(err error, closed *websocket.CloseError) bool {
	code := websocket.CloseStatus(err)
	if code == -1 {
		return false
	}
	closed.Code = code
	_, rest, _ := strings.Cut(err.Error(), `reason = "`)
	closed.Reason, _, _ = strings.Cut(rest, `"`)
	return true
}

// send sends a message; binary is input.
func (c *ptyClient) send(kind websocket.MessageType, data string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), wait.Patience())
	defer cancel()
	must(c.t, c.socket.Write(ctx, kind, []byte(data)))
}

func (c *ptyClient) typed(text string) { c.t.Helper(); c.send(websocket.MessageBinary, "\x00"+text) }

// TestPTYOfOpenSandbox: a session's terminal is started for the first client, which has it alone
// until it leaves or another client takes its place.
func TestPTYOfOpenSandbox(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	directory := filepath.Join(t.TempDir(), "made")
	session := d.pty(t, `{"cwd":"`+directory+`","command":null}`)
	d.want(t, "GET "+session, "", 200, `"launch_attempted":false`)

	first := d.connect(t, session+"/ws")
	first.typed("pwd; echo one-$((40+2))\n")
	first.until(directory)
	first.until("one-42")
	if !strings.HasPrefix(first.text, `{"type":"connected","session_id":"`+strings.TrimPrefix(session, "/pty/")+`","mode":"pty"}`) {
		t.Errorf("the first message is %s", first.text)
	}
	d.want(t, "GET "+session, "", 200, `"running":true`)

	// Another client is refused, and ends nothing.
	for _, query := range []string{"", "?takeover=0", "?since=0"} {
		if client, status, text := d.dialPTY(t, session+"/ws"+query); client != nil || status != 409 || !strings.Contains(text, `"ALREADY_CONNECTED"`) {
			t.Errorf("%q beside another client: %d %s", query, status, text)
		}
	}
	// Neither does a request to take over that is no handshake.
	d.want(t, "GET "+session+"/ws?takeover=1", "", 400, "WebSocket")
	first.typed("echo still-$((40+2))\n")
	first.until("still-42")

	second := d.connect(t, session+"/ws?takeover=1")
	first.end(4001, "TAKEN_OVER")
	second.until("one-42")
	if second.at != 0 || !strings.Contains(string(second.output), "still-42") {
		t.Errorf("the replay begins at %d with %q", second.at, second.output)
	}
	second.send(websocket.MessageText, `{"type":"stdin","data":"echo two-$((40+2))\n"}`)
	second.until("two-42")
	second.send(websocket.MessageText, `{"type":"resize","rows":33,"cols":77}`)
	second.typed("stty size\n")
	second.until("33 77")
	second.send(websocket.MessageText, `{"type":"ping"}`)
	second.send(websocket.MessageText, `{"type":"unheard"}`)
	for !strings.Contains(second.text, "INVALID_FRAME") && second.next() {
	}
	if !strings.Contains(second.text, `{"type":"pong"}`) {
		t.Errorf("the answers are %s", second.text)
	}

	// One that has left, or whose connection was cut, holds nothing.
	_ = second.socket.Close(websocket.StatusNormalClosure, "") // an error says that the daemon is slow
	third := d.connectOnceFree(t, session+"/ws?since=1000000")
	third.typed("echo four-$((40+2))\n")
	third.until("four-42")
	if third.at != -1 || strings.Contains(string(third.output), "one-42") {
		t.Errorf("a client that has seen everything gets a replay at %d: %q", third.at, third.output)
	}
	must(t, third.conn.Close())
	fourth := d.connectOnceFree(t, session+"/ws?since=5")
	fourth.until("four-42")
	if fourth.at != 5 {
		t.Errorf("the replay begins at %d, want 5", fourth.at)
	}

	// The end of the program frees the place, too, and the next client has another program.
	fourth.typed("exit 7\n")
	fourth.end(websocket.StatusNormalClosure, "process exited")
	if !strings.Contains(fourth.text, `{"type":"exit","exit_code":7}`) {
		t.Errorf("the end is %s", fourth.text)
	}
	d.want(t, "GET "+session, "", 200, `"running":false`)
	fifth := d.connect(t, session+"/ws")
	fifth.typed("echo five-$((40+2))\n")
	fifth.until("five-42")

	d.want(t, "DELETE "+session, "", 200, "")
	for fifth.next() {
	}
	d.want(t, "DELETE "+session, "", 404, "PTY session")
	d.want(t, "GET "+session, "", 404, "PTY session")
	if client, status, _ := d.dialPTY(t, session+"/ws?takeover=1"); client != nil || status != 404 {
		t.Errorf("a session that was deleted: %d", status)
	}
}

// TestPTYRefusals: what is not served is refused by its name, and what cannot be started is
// reported.
func TestPTYRefusals(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	d.want(t, "POST /pty", `{"cmd":"x"}`, 400, "cmd")
	d.want(t, "POST /pty", `{"command":"`+strings.Repeat("x", 200<<10)+`"}`, 400, "body/command")
	session := d.pty(t, "")
	for query, says := range map[string]string{"?pty=0": "query parameter pty", "?since=x": "query parameter since", "?role=viewer": "query parameter role"} {
		if client, status, text := d.dialPTY(t, session+"/ws"+query); client != nil || status != 400 || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	d.want(t, "DELETE "+session, "", 200, "")

	failing := d.connect(t, d.pty(t, `{"cwd":"/dev/null"}`)+"/ws")
	failing.end(websocket.StatusInternalError, "START_FAILED")
	if !strings.Contains(failing.text, `"code":"START_FAILED"`) {
		t.Errorf("a start in no directory: %s", failing.text)
	}
	// A command is run by the shell, and its last output comes before its end.
	once := d.connect(t, d.pty(t, `{"command":"echo out-$((40+2)); exit 3"}`)+"/ws")
	once.end(websocket.StatusNormalClosure, "process exited")
	if !strings.Contains(string(once.output), "out-42") || !strings.Contains(once.text, `"exit_code":3`) {
		t.Errorf("a command: %q, %s", once.output, once.text)
	}
	// A signal is for what reads the terminal.
	trapping := d.connect(t, d.pty(t, `{"command":"trap 'echo got-$((40+2)); exit 9' INT; echo set-$((40+2)); while :; do sleep 0.1; done"}`)+"/ws")
	trapping.until("set-42")
	trapping.send(websocket.MessageText, `{"type":"signal","signal":"SIGNONE"}`)
	trapping.send(websocket.MessageText, `{"type":"signal","signal":"SIGINT"}`)
	trapping.end(websocket.StatusNormalClosure, "process exited")
	if !strings.Contains(string(trapping.output), "got-42") || !strings.Contains(trapping.text, `"exit_code":9`) {
		t.Errorf("after SIGINT: %q, %s", trapping.output, trapping.text)
	}
	// Other clients have the contract's own operation.
	if status, text := d.get(t, "/opensandbox"+session, token); status != http.StatusNotFound {
		t.Errorf("a session for another client: %d %s", status, text)
	}
}

// TestPTYTakenOverByMany: of many clients that take over at once one is left.
func TestPTYTakenOverByMany(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	session := d.pty(t, "")
	const many = 8
	clients := make(chan *ptyClient, many)
	for range many {
		go func() {
			client, _, _ := d.dialPTY(t, session+"/ws?takeover=1")
			clients <- client // nil when it was refused
		}()
	}
	var all []*ptyClient
	for range many {
		client := wait.For(t, "a client", clients)
		if client == nil {
			t.Fatal("a client was refused")
		}
		// The daemon has it take over after the handshake.
		for !strings.Contains(client.text, "connected") && client.next() {
		}
		all = append(all, client)
	}
	last := d.connect(t, session+"/ws?takeover=1")
	for _, client := range all {
		client.end(4001, "TAKEN_OVER")
	}
	last.typed("echo last-$((40+2))\n")
	last.until("last-42")
}
