package clients_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
	server "sandbox.internal/clients/mcp"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestMCP drives the tools over HTTP, as agents do.
func TestMCP(t *testing.T) {
	t.Parallel()
	const (
		alice  = "the-key-of-alice-of-these-tests-x"
		bob    = "the-key-of-bob-of-these-tests-xxx"
		viewer = "the-key-of-a-viewer-of-these-tests"
	)
	s := startWithPython(t, conformance.Plan{Keys: []config.Key{
		{Name: "alice", SHA256: digest(alice), Role: config.RoleUser},
		{Name: "bob", SHA256: digest(bob), Role: config.RoleUser},
		{Name: "viewer", SHA256: digest(viewer), Role: config.RoleViewer},
	}})
	a := overHTTP(t, s.URL, alice)
	id := a.create(busyboxImage)
	prints := s.As(t, alice).Running(t, conformance.Request(baseImage, "sh", "-c", "echo said by the program; exec sleep 1000"))
	t.Run("tools", func(t *testing.T) { testTools(t, a, id, prints) })
	t.Run("images", func(t *testing.T) { testImages(t, a) })
	t.Run("checkpoints", func(t *testing.T) { testCheckpoints(t, a) })
	t.Run("sleep", func(t *testing.T) { testSleep(t, a) })
	t.Run("roles", func(t *testing.T) {
		b, v := overHTTP(t, s.URL, bob), overHTTP(t, s.URL, viewer)
		b.refused("FORBIDDEN", "run_command", map[string]any{"sandbox": id, "command": "true"})
		if list := b.call("list_sandboxes", nil); strings.Contains(list, id) {
			t.Errorf("bob sees %s", list)
		}
		v.refused("FORBIDDEN", "create_sandbox", map[string]any{"image": busyboxImage})
		v.refused("FORBIDDEN", "delete_sandbox", map[string]any{"sandbox": id})
		if list := v.call("list_sandboxes", nil); !strings.Contains(list, id) {
			t.Errorf("the viewer sees %s", list)
		}
	})
	t.Run("cancel", func(t *testing.T) { testLeave(t, s, a, id, "sleep 4711", false) })
	t.Run("earlier protocol", func(t *testing.T) { testEarlierProtocol(t, s, id, alice) })
	t.Run("lost client", func(t *testing.T) {
		testLeave(t, s, overHTTP(t, s.URL, alice), id, "sleep 4712", true)
	})
	t.Run("browsers and strangers", func(t *testing.T) {
		if got := ping(t, s.URL, conformance.AdminKey); got.Status != http.StatusOK {
			t.Errorf("a program: %s", got)
		}
		for _, header := range []string{"Origin", "Sec-Fetch-Site"} {
			conformance.WantProblem(t, ping(t, s.URL, conformance.AdminKey, header, s.URL),
				http.StatusForbidden, "FORBIDDEN", header)
		}
		conformance.WantProblem(t, ping(t, s.URL, "wrong"), http.StatusUnauthorized, "UNAUTHORIZED")
	})
	if text := a.call("delete_sandbox", map[string]any{"sandbox": id}); text != "deleted" {
		t.Error(text)
	}
}

// testEarlierProtocol: clients of 2025-06-18 initialize a session, and cancel with a message.
func testEarlierProtocol(t *testing.T, s *service, id, key string) {
	hello := post(t, s.URL, key, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{
		"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	session := hello.Header.Get("Mcp-Session-Id")
	if session == "" || !strings.Contains(hello.Body, `"protocolVersion":"2025-06-18"`) {
		t.Fatalf("%s", hello)
	}
	headers := []string{"Mcp-Session-Id", session, "MCP-Protocol-Version", "2025-06-18"}
	send := func(message string) conformance.Answer { return post(t, s.URL, key, message, headers...) }
	got := send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got.Status != http.StatusAccepted {
		t.Errorf("%s", got)
	}
	got = send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	if !strings.Contains(got.Body, "run_command") {
		t.Errorf("%s", got)
	}
	const marker = "sleep 4713"
	over := make(chan conformance.Answer, 1)
	go func() {
		over <- send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_command",
			"arguments":{"sandbox":"` + id + `","command":"` + marker + `"}}}`)
	}()
	awaitProcess(t, s, id, marker, true)
	const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled",
		"params":{"requestId":3}}`
	_ = post(t, s.URL, key, cancelled, "Mcp-Session-Id", "of another client") // reaches no call
	select {
	case got := <-over:
		t.Errorf("another client ended the call: %s", got)
	default:
	}
	send(cancelled)
	awaitProcess(t, s, id, marker, false)
	wait.For(t, "the end of the call", over)
}

// testImages: what can be looked at comes as an image.
func testImages(t *testing.T, a *agent) {
	id := a.create(pythonImage)
	ran := a.call("run_code", map[string]any{"sandbox": id, "context": "new",
		"code": "x = 41\nprint('out')\nx + 1"})
	match := regexp.MustCompile(`^context: (\S+)\nended well\nout\n42\n$`).FindStringSubmatch(ran)
	if match == nil {
		t.Fatalf("%q", ran)
	}
	const plot = "from IPython.display import Image\ndata = bytes.fromhex('89504e470d0a1a0a')\n" +
		"open('/tmp/plot.png', 'wb').write(data)\nImage(data=data, format='png')"
	ran = a.call("run_code", map[string]any{"sandbox": id, "context": match[1], "code": plot})
	if !strings.HasSuffix(ran, "<image/png of 8 bytes>") {
		t.Errorf("%q", ran)
	}
	got := a.call("read_file", map[string]any{"sandbox": id, "path": "/tmp/plot.png"})
	if got != "<image/png of 8 bytes>" {
		t.Errorf("%q", got)
	}
	// Without a context it is the default one, which keeps its own variables from cell to cell.
	ran = a.call("run_code", map[string]any{"sandbox": id, "code": "x"})
	if !strings.HasPrefix(ran, "failed\n") || !strings.Contains(ran, "NameError") ||
		strings.Contains(ran, "\x1b") {
		t.Errorf("%q", ran)
	}
	a.call("run_code", map[string]any{"sandbox": id, "code": "x = 1"})
	ran = a.call("run_code", map[string]any{"sandbox": id, "code": "x + 1"})
	if ran != "ended well\n2\n" {
		t.Errorf("the second cell of the default context: %q", ran)
	}
	// A cell that outlasts the call goes on, and another call has all that it shows.
	ran = a.call("run_code", map[string]any{"sandbox": id, "wait_seconds": 1, "code": "import os, time\n" +
		"print('begins')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('ends')"})
	match = regexp.MustCompile(`^running after 1s\ncell: (\S+)\n`).FindStringSubmatch(ran)
	if match == nil {
		t.Fatalf("a cell that outlasts the call: %q", ran)
	}
	a.call("write_file", map[string]any{"sandbox": id, "path": "/tmp/go", "content": ""})
	if ran = a.call("run_code", map[string]any{"sandbox": id, "cell": match[1]}); ran != "ended well\nbegins\nends\n" {
		t.Errorf("the cell that went on: %q", ran)
	}
	a.refused("either code or cell", "run_code", map[string]any{"sandbox": id})
	a.refused("timeout_seconds must not be more than wait_seconds", "run_code",
		map[string]any{"sandbox": id, "code": "1", "timeout_seconds": 60})
	a.refused("was interrupted after 1s", "run_code", map[string]any{"sandbox": id,
		"timeout_seconds": 1,
		"code":            "import time\nprint('waits')\ntime.sleep(60)"})
}

// TestMCPOverStdio drives the tools as `sandbox mcp` serves them, on a service without /mcp.
func TestMCPOverStdio(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Server: "mcp = false"})
	if got := ping(t, s.URL, conformance.AdminKey); got.Status != http.StatusNotFound {
		t.Errorf("%s", got)
	}
	client, err := sandbox.New(&sandbox.Options{URL: s.URL, Key: conformance.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- server.ServeStdio(t.Context(), in, out, client, "test")
		_ = out.Close()
	}()
	a := connect(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer})
	id := a.create(busyboxImage)
	got := a.call("run_command", map[string]any{"sandbox": id, "command": "echo hello"})
	if !strings.Contains(got, "hello\n") {
		t.Error(got)
	}
	// The client goes away while a command runs.
	marker := "sleep 98765"
	go func() {
		_, _ = a.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_command",
			Arguments: map[string]any{"sandbox": id, "command": marker}})
	}()
	awaitProcess(t, s, id, marker, true)
	_ = toServer.Close()
	if err := wait.For(t, "the end of the server", served); err != nil {
		t.Error(err)
	}
	awaitProcess(t, s, id, marker, false)
}

// testCheckpoints keeps the files of a sandbox, goes back to them, and copies it.
func testCheckpoints(t *testing.T, a *agent) {
	id := a.create(busyboxImage)
	checkpoint := func(action string, more map[string]any) string {
		arguments := map[string]any{"sandbox": id, "action": action}
		maps.Copy(arguments, more)
		return a.call("checkpoint", arguments)
	}
	write := func(content string) {
		a.call("write_file", map[string]any{"sandbox": id, "path": "/w/note", "content": content})
	}
	read := func(id string) string {
		return a.call("read_file", map[string]any{"sandbox": id, "path": "/w/note"})
	}
	if got := checkpoint("list", nil); !strings.Contains(got, "no checkpoints") {
		t.Errorf("the list is %q", got)
	}
	write("good")
	kept := strings.TrimPrefix(checkpoint("take", map[string]any{"name": "before"}), "checkpoint: ")
	write("broken")
	if got := checkpoint("list", nil); !strings.Contains(got, kept+` name="before"`) {
		t.Errorf("the list is %q, without %s", got, kept)
	}
	if got := checkpoint("diff", map[string]any{"checkpoint": kept}); !strings.Contains(got, `added "/w/note" 4`+"\n") {
		t.Errorf("the difference to the image is %q", got)
	}
	later := strings.TrimPrefix(checkpoint("take", nil), "checkpoint: ")
	if got := checkpoint("diff", map[string]any{"checkpoint": kept, "to": later}); got != `modified "/w/note" 6`+"\n" {
		t.Errorf("the difference to the later checkpoint is %q", got)
	}
	if got := checkpoint("diff", map[string]any{"checkpoint": later, "to": later}); got != "Nothing has changed." {
		t.Errorf("the difference to itself is %q", got)
	}
	checkpoint("rollback", map[string]any{"checkpoint": kept})
	if got := read(id); got != "good" {
		t.Errorf("after the rollback: %q", got)
	}
	forked := checkpoint("fork", map[string]any{"count": 2})
	ids := regexp.MustCompile(`id: (\S+) state: Running`).FindAllStringSubmatch(forked, -1)
	if len(ids) != 2 {
		t.Fatalf("the fork answers %q", forked)
	}
	for _, match := range ids {
		if got := read(match[1]); got != "good" {
			t.Errorf("in a fork: %q", got)
		}
	}
	checkpoint("delete", map[string]any{"checkpoint": kept})
	a.refused("SNAPSHOT_NOT_FOUND", "checkpoint", map[string]any{"sandbox": id, "action": "rollback", "checkpoint": kept})
	a.refused("action list", "checkpoint", map[string]any{"sandbox": id, "action": "rollback"})
	a.refused("action list", "checkpoint", map[string]any{"sandbox": id, "action": "diff"})
	a.refused("at most 10", "checkpoint", map[string]any{"sandbox": id, "action": "fork", "count": 11})
	for _, id := range []string{id, ids[0][1], ids[1][1]} {
		a.call("delete_sandbox", map[string]any{"sandbox": id})
	}
}

// testSleep: an agent sees why a sandbox is Paused, and wakes it by a call.
func testSleep(t *testing.T, a *agent) {
	created := a.call("create_sandbox", map[string]any{"image": busyboxImage, "life_seconds": 600,
		"on_idle": "pause", "idle_seconds": 0.05, "on_timeout": "pause"})
	match := regexp.MustCompile(`^id: (\S+)\n`).FindStringSubmatch(created)
	if match == nil {
		t.Fatalf("created: %q", created)
	}
	id := match[1]
	await := func(want string) {
		t.Helper()
		var list string
		wait.Until(t, "the list has "+want, func() bool {
			list = a.call("list_sandboxes", map[string]any{"state": sandbox.Paused})
			return strings.Contains(list, id+want)
		}, func() any { return list })
		if !strings.Contains(list, " on_idle=pause idle_seconds=0.05 on_timeout=pause\n") {
			t.Errorf("the list is %q", list)
		}
	}
	await(" Paused reason=IDLE ")
	if got := a.call("run_command", map[string]any{"sandbox": id, "command": "echo awake"}); !strings.Contains(got, "awake\n") {
		t.Errorf("the command of a sandbox that slept: %q", got)
	}
	await(" Paused reason=IDLE ")
	a.call("pause_sandbox", map[string]any{"sandbox": id, "paused": true})
	await(" Paused reason=USER_PAUSE ")
	if got := a.call("pause_sandbox", map[string]any{"sandbox": id, "paused": false}); !strings.Contains(got, "Running") {
		t.Errorf("the resume answers %q", got)
	}
	a.refused("idle_seconds must be", "create_sandbox", map[string]any{"image": busyboxImage, "idle_seconds": 0.01})
	a.refused("on_idle", "create_sandbox", map[string]any{"image": busyboxImage, "on_idle": "never"})
	a.call("delete_sandbox", map[string]any{"sandbox": id})
}

func testTools(t *testing.T, a *agent, id, prints string) {
	with := func(more map[string]any) map[string]any {
		more["sandbox"] = id
		return more
	}
	for _, step := range []struct {
		tool      string
		arguments map[string]any
		want      []string
	}{
		{"list_sandboxes", nil, []string{id, "Running"}},
		{"run_command", with(map[string]any{"command": "echo $X; echo oops >&2; exit 3",
			"env": map[string]string{"X": "hi"}}), []string{"exit code: 3", "hi\n", "oops\n"}},
		{"run_command", with(map[string]any{"command": "sleep 60", "timeout_seconds": 1}),
			[]string{"timeout of 1s"}},
		{"write_file", with(map[string]any{"path": "/w/a.txt", "content": "alpha", "mode": 640}),
			[]string{"5 bytes"}},
		{"write_file", with(map[string]any{"path": "/w/b.bin", "content": "/wA=", "base64": true}),
			[]string{"2 bytes"}},
		{"read_file", with(map[string]any{"path": "/w/a.txt"}), []string{"alpha"}},
		{"search_files", with(map[string]any{"path": "/w", "pattern": "*.txt"}),
			[]string{"/w/a.txt 5"}},
		{"search_files", with(map[string]any{"path": "/w", "pattern": "*.none"}),
			[]string{"Nothing"}},
		{"renew_sandbox", with(map[string]any{"life_seconds": 3600}), []string{"expires: "}},
		{"pause_sandbox", with(map[string]any{"paused": true}), []string{"Paused"}},
		{"pause_sandbox", with(map[string]any{"paused": true}), []string{"Paused"}},
		{"pause_sandbox", with(map[string]any{"paused": false}), []string{"Running"}},
	} {
		got := a.call(step.tool, step.arguments)
		for _, want := range step.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s %v: %q is not in %q", step.tool, step.arguments, want, got)
			}
		}
	}
	wait.Until(t, "read_logs shows what the sandbox's own program printed", func() bool {
		return strings.Contains(a.call("read_logs", map[string]any{"sandbox": prints}), "said by the program\n")
	})
	a.refused("not text", "read_file", with(map[string]any{"path": "/w/b.bin"}))
	a.refused("FILE_NOT_FOUND", "read_file", with(map[string]any{"path": "/none"}))
	a.refused("1 to 3600", "run_command",
		with(map[string]any{"command": "true", "timeout_seconds": 9999}))

	// More output than is shown: what is left out can be read, without a gap.
	got := a.call("run_command", with(map[string]any{"command": "seq 1 30000"}))
	match := readsOn.FindStringSubmatch(got)
	if len(got) > 26<<10 || match == nil || !strings.HasSuffix(got, "\n29999\n30000\n") {
		t.Fatalf("%d bytes: %.200s", len(got), got)
	}
	head, _, _ := strings.Cut(got, "\n\n[")
	last := head[strings.LastIndexByte(head, '\n')+1:]
	command := regexp.MustCompile(`command: (\S+),`).FindStringSubmatch(got)[1]
	var next int
	if _, err := fmt.Sscan(last, &next); err != nil {
		t.Fatal(err)
	}
	for cursor := match[1]; cursor != "29999"; {
		page := a.call("read_logs",
			with(map[string]any{"command": command, "cursor": number(t, cursor)}))
		_, lines, _ := strings.Cut(page, "\n")
		lines, note, _ := strings.Cut(lines, "\n[")
		for line := range strings.Lines(strings.TrimSpace(lines)) {
			if next++; strings.TrimSpace(line) != fmt.Sprint(next) {
				t.Fatalf("after %d comes %q", next-1, line)
			}
		}
		if match = readsOn.FindStringSubmatch(note); match == nil {
			break
		}
		cursor = match[1]
	}
	if next != 30000 {
		t.Errorf("the last line is %d", next)
	}

	// A large file, in parts.
	a.call("run_command", with(map[string]any{"command": "seq 1 10000 > /w/long"}))
	var whole strings.Builder
	for offset := int64(0); ; {
		part := a.call("read_file", with(map[string]any{"path": "/w/long", "offset": offset}))
		content, note, cut := strings.Cut(part, "\n[cut; ")
		whole.WriteString(content)
		if !cut {
			break
		}
		if _, err := fmt.Sscanf(note, "offset %d", &offset); err != nil {
			t.Fatal(err)
		}
	}
	if text := whole.String(); !strings.HasPrefix(text, "1\n2\n") ||
		!strings.HasSuffix(text, "9999\n10000\n") || len(text) != 48894 {
		t.Errorf("%d bytes", whole.Len())
	}

	// A server in the background, and the URL of its port.
	started := a.call("run_command", with(map[string]any{"background": true,
		"command": "mkdir /www; echo a page > /www/index.html; exec busybox httpd -f -p 8000 -h /www"}))
	url := regexp.MustCompile(`url: (\S+)`).FindStringSubmatch(
		a.call("wait_for_port", with(map[string]any{"port": 8000})))
	if !strings.HasPrefix(started, "command: ") || url == nil {
		t.Fatal(started, url)
	}
	response, err := wait.Client().Get(url[1])
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if page, err := io.ReadAll(response.Body); err != nil || string(page) != "a page\n" {
		t.Errorf("%q, %v", page, err)
	}
	a.refused("no process listens", "wait_for_port",
		with(map[string]any{"port": 8001, "timeout_seconds": 1}))

	// A long command reports what it prints, while it runs.
	a.mu.Lock()
	a.progress, a.notified = nil, make(chan struct{}, 100)
	a.mu.Unlock()
	running := make(chan string, 1)
	go func() {
		running <- a.call("run_command", with(map[string]any{
			"command": "echo halfway; while [ ! -e /w/go ]; do sleep 0.05; done; echo there"}))
	}()
	select {
	case <-a.notified:
	case <-time.After(wait.Patience()):
		t.Fatal("no progress was reported")
	}
	a.mu.Lock()
	first := a.progress[0]
	a.mu.Unlock()
	a.call("write_file", with(map[string]any{"path": "/w/go", "content": ""}))
	if got := wait.For(t, "the end of the command", running); first != "halfway" || !strings.Contains(got, "there") {
		t.Errorf("reported %q, then %q", first, got)
	}
}

// testLeave: the command of a call is interrupted when its client cancels it, or is gone.
func testLeave(t *testing.T, s *service, a *agent, id, marker string, gone bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "run_command",
			Arguments: map[string]any{"sandbox": id, "command": marker}})
		done <- err
	}()
	awaitProcess(t, s, id, marker, true)
	if gone {
		a.cut()
	} else {
		cancel()
	}
	awaitProcess(t, s, id, marker, false)
	cancel()
	wait.For(t, "the end of the call", done)
}
