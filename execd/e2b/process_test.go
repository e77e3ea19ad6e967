package e2b_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"sandbox.internal/test/wait"
)

// bash is the configuration that the clients send for a command line.
func bash(line string) message {
	return message{"cmd": "/bin/bash", "args": []string{"-c", line}}
}

// follower reads the events of a process.
type follower struct {
	*stream
	pid            int
	out, err, pty  bytes.Buffer
	messages       int // with data
	keepAlives     int
	cut            bool // a message had half a character
	end            message
	code, failText string
}

// run starts a process and reads its first event.
func (d *daemon) run(t *testing.T, in message, more headers) *follower {
	t.Helper()
	f := &follower{stream: d.stream(t, "process.Process/Start", in, more)}
	f.start()
	return f
}

// follow connects to a process and reads the first event.
func (d *daemon) follow(t *testing.T, by message, more headers) *follower {
	t.Helper()
	f := &follower{stream: d.stream(t, "process.Process/Connect", message{"process": by}, more)}
	f.start()
	return f
}

func (f *follower) start() {
	f.t.Helper()
	if f.read() {
		return
	}
	if f.pid == 0 {
		f.t.Fatal("the first event is no start")
	}
}

// read takes one message, and reports whether it is the last.
func (f *follower) read() (last bool) {
	f.t.Helper()
	out, last := f.next()
	if last {
		if failed, ok := out["error"].(message); ok {
			f.code, _ = failed["code"].(string)
			f.failText, _ = failed["message"].(string)
		}
		return true
	}
	event, _ := out["event"].(message)
	if len(event) != 1 {
		f.t.Fatalf("no event: %v", out)
	}
	for kind, value := range event {
		value := value.(message)
		switch kind {
		case "start":
			f.pid = int(value["pid"].(float64))
		case "data":
			f.messages++
			for name, to := range map[string]*bytes.Buffer{"stdout": &f.out, "stderr": &f.err, "pty": &f.pty} {
				if text, ok := value[name].(string); ok {
					data, err := base64.StdEncoding.DecodeString(text)
					must(f.t, err)
					f.cut = f.cut || !utf8.Valid(data)
					to.Write(data)
				}
			}
		case "end":
			f.end = value
		case "keepalive":
			f.keepAlives++
		default:
			f.t.Fatalf("no event: %v", out)
		}
	}
	return false
}

// all reads to the end.
func (f *follower) all() *follower {
	f.t.Helper()
	for !f.read() {
	}
	return f
}

// until reads until a text has come.
func (f *follower) until(text string) {
	f.t.Helper()
	for !strings.Contains(f.out.String()+f.err.String()+f.pty.String(), text) {
		if f.read() {
			f.t.Fatalf("%q does not come: %q %q %q, %s %s", text, f.out.String(), f.err.String(), f.pty.String(), f.code, f.failText)
		}
	}
}

// wantEnd checks how a process ended.
func (f *follower) wantEnd(want message) {
	f.t.Helper()
	if f.code != "" || fmt.Sprint(f.end) != fmt.Sprint(want) {
		f.t.Errorf("the end is %v, error %s %s, want %v", f.end, f.code, f.failText, want)
	}
}

func (f *follower) by() message { return message{"pid": f.pid} }

func TestEndOfAProcess(t *testing.T) {
	t.Parallel()
	d := start(t)
	for line, want := range map[string]message{
		"true":        {"exited": true, "status": "exit status 0"},
		"exit 3":      {"exitCode": 3.0, "exited": true, "status": "exit status 3", "error": "exit status 3"},
		"kill -9 $$":  {"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"},
		"kill -15 $$": {"exitCode": -1.0, "status": "signal: terminated", "error": "signal: terminated"},
	} {
		d.run(t, message{"process": bash(line)}, nil).all().wantEnd(want)
		d.run(t, message{"process": bash(line), "pty": message{}}, nil).all().wantEnd(want)
	}
}

// TestArguments: no shell reads them.
// TestEndOfTheSandbox: clients have an error of their own for a sandbox that ends, which an exit of
// the process would hide from them. A process that ends well has done so.
func TestEndOfTheSandbox(t *testing.T) {
	t.Parallel()
	d := start(t)
	killed := d.run(t, message{"process": bash("echo ready; exec sleep 600")}, nil)
	failing := d.run(t, message{"process": bash(`trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done`)}, nil)
	clean := d.run(t, message{"process": bash(`trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)}, nil)
	shell := d.run(t, message{"process": bash("echo ready; exec sleep 600"), "pty": message{"size": message{"cols": 80, "rows": 24}}}, nil)
	connected := d.follow(t, message{"pid": killed.pid}, nil)
	for _, f := range []*follower{killed, failing, clean, shell} {
		f.until("ready")
	}
	d.stop()
	for name, f := range map[string]*follower{"killed": killed, "failing": failing, "terminal": shell, "connected": connected} {
		if f.all(); f.code != "unavailable" || f.end != nil {
			t.Errorf("%s: the end is %v, error %s %s, want unavailable", name, f.end, f.code, f.failText)
		}
	}
	clean.all().wantEnd(message{"exited": true, "status": "exit status 0"})
}

func TestArguments(t *testing.T) {
	t.Parallel()
	d := start(t)
	f := d.run(t, message{"process": message{"cmd": "printf", "args": []string{"<%s>", "$HOME", "a b", "", "*"}}}, nil).all()
	if got := f.out.String(); got != "<$HOME><a b><><*>" {
		t.Errorf("the program got %s", got)
	}
}

// TestPid: it is the one that the process has itself.
func TestPid(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, in := range []message{{"process": bash("echo $$")}, {"process": bash("echo $$"), "pty": message{"size": message{"cols": 80, "rows": 24}}}} {
		f := d.run(t, in, nil).all()
		if got := strings.TrimSpace(f.out.String() + f.pty.String()); got != strconv.Itoa(f.pid) {
			t.Errorf("the start has %d, the process %s", f.pid, got)
		}
	}
}

// TestBytesAreExact: a mebibyte of any bytes through the standard input and output.
func TestBytesAreExact(t *testing.T) {
	t.Parallel()
	d := start(t)
	f := d.run(t, message{"process": message{"cmd": "cat"}}, nil)
	random := rand.New(rand.NewPCG(7, 0))
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	const piece = 300_000
	for at := 0; at < len(data); at += piece {
		d.succeeds(t, "process.Process/SendInput", message{"process": f.by(),
			"input": message{"stdin": base64.StdEncoding.EncodeToString(data[at:min(at+piece, len(data))])}})
	}
	d.succeeds(t, "process.Process/CloseStdin", message{"process": f.by()})
	f.all().wantEnd(message{"exited": true, "status": "exit status 0"})
	if got := f.out.Bytes(); sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("%d bytes came, and they are not the %d that were sent", len(got), len(data))
	}
}

// TestCharactersAreWhole: no message ends in the middle of one, and what is none is not lost.
func TestCharactersAreWhole(t *testing.T) {
	t.Parallel()
	d := start(t)
	text := strings.Repeat("äöü€𝄞 ", 40_000) // without a newline
	file := filepath.Join(t.TempDir(), "text")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	for name, in := range map[string]message{
		"pipe": {"process": bash("cat " + file)},
		"pty":  {"process": bash("cat " + file), "pty": message{}},
	} {
		f := d.run(t, in, nil).all()
		if got := f.out.String() + f.pty.String(); got != text || f.cut {
			t.Errorf("%s: %d of %d bytes, characters in two messages: %v", name, len(got), len(text), f.cut)
		}
	}
	// The first two bytes of a character, and nothing after them.
	for name, in := range map[string]message{
		"pipe": {"process": bash(`printf 'a\342\202'`)},
		"pty":  {"process": bash(`printf 'a\342\202'`), "pty": message{}},
	} {
		if f := d.run(t, in, nil).all(); f.out.String()+f.pty.String() != "a\xe2\x82" {
			t.Errorf("%s: half a character at the end became %q and %q", name, f.out.String(), f.pty.String())
		}
	}
	var f *follower
	for limit := 500; f == nil || f.out.Len() == 0; limit *= 2 { // a busy machine may take longer to start it
		f = d.run(t, message{"process": bash(`printf 'a\342\202'; sleep 1000`)}, headers{"Connect-Timeout-Ms": strconv.Itoa(limit)}).all()
	}
	if f.out.String() != "a\xe2\x82" || f.code != "deadline_exceeded" {
		t.Errorf("half a character before the timeout became %q, %s", f.out.String(), f.code)
	}
	// A character whose bytes come one by one.
	f = d.run(t, message{"process": bash(`printf '\342'; read; printf '\202'; read; printf '\254\n'; read`)}, nil)
	for range 2 {
		d.succeeds(t, "process.Process/SendInput", message{"process": f.by(), "input": message{"stdin": "Cg=="}})
	}
	f.until("€\n")
	if f.cut {
		t.Error("a character that came byte by byte is in two messages")
	}
}

// TestManyLinesShareMessages: lines that are at hand together are sent together.
func TestManyLinesShareMessages(t *testing.T) {
	t.Parallel()
	d := start(t)
	f := d.run(t, message{"process": bash("seq 100000; seq 3 >&2")}, nil).all()
	if lines := strings.Count(f.out.String(), "\n"); lines != 100_000 || f.err.String() != "1\n2\n3\n" || f.messages > 10_000 {
		t.Errorf("%d lines in %d messages, stderr %q", lines, f.messages, f.err.String())
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("OF_THE_SANDBOX", "one")
	t.Setenv("CHANGED", "one")
	t.Setenv("HOME", "/of/execd")
	t.Setenv("EXECD_SECRET", "one")
	d := start(t)
	root, err := user.Lookup("root")
	must(t, err)
	for _, pty := range []any{nil, message{}} {
		f := d.run(t, message{"process": message{"cmd": "env", "cwd": "/", "envs": message{"CHANGED": "two", "MORE": "$x"}}, "pty": pty},
			headers{"X-E2b-Default-User": "root", "X-E2b-Own-Sandbox": "5f0c", "X-E2b-Own-Template": "image%3A1"}).all()
		got := strings.Split(strings.TrimSpace(strings.ReplaceAll(f.out.String()+f.pty.String(), "\r", "")), "\n")
		have := make(map[string]bool)
		for _, entry := range got {
			have[entry] = true
			if strings.HasPrefix(entry, "EXECD_") {
				t.Errorf("a variable of execd: %s", entry)
			}
		}
		for _, want := range []string{"HOME=" + root.HomeDir, "USER=root", "LOGNAME=root", "OF_THE_SANDBOX=one", "CHANGED=two",
			"MORE=$x", "PATH=" + os.Getenv("PATH"), "PWD=/", "E2B_SANDBOX=true", "E2B_SANDBOX_ID=5f0c", "E2B_TEMPLATE_ID=image:1"} {
			if !have[want] {
				t.Errorf("%s is not among %q", want, got)
			}
		}
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("this test must be root: it runs processes as other users")
	}
	d := start(t)
	basic := func(name string) headers {
		return headers{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"))}
	}
	other, err := user.Lookup("nobody")
	must(t, err)
	usual := other // of clients of version 1, on a machine without the user "user"
	if found, err := user.Lookup("user"); err == nil {
		usual = found
	}
	withDefault := basic("user")
	withDefault["X-E2b-Default-User"] = "nobody"
	in := message{"process": message{"cmd": "/bin/sh", "args": []string{"-c", "echo $(id -u):$(id -g):$USER:$LOGNAME:$HOME"}, "cwd": "/"}}
	for name, test := range map[string]struct {
		headers headers
		want    string
	}{
		"named":      {basic("nobody"), other.Uid + ":" + other.Gid + ":nobody:nobody:" + other.HomeDir},
		"by default": {headers{"X-E2b-Default-User": "nobody"}, other.Uid + ":" + other.Gid + ":nobody:nobody:" + other.HomeDir},
		"usual":      {withDefault, usual.Uid + ":" + usual.Gid + ":" + usual.Username + ":" + usual.Username + ":" + usual.HomeDir},
		"root":       {basic("root"), "0:0:root:root:/root"},
		"execd's":    {nil, "0:0:root:root:/root"},
	} {
		for _, pty := range []any{nil, message{}} {
			in["pty"] = pty
			f := d.run(t, in, test.headers).all()
			if got := strings.TrimSpace(f.out.String() + f.pty.String()); got != test.want {
				t.Errorf("%s: %s, want %s", name, got, test.want)
			}
		}
	}
	f := d.run(t, in, basic("no-such-user"))
	if f.code != "unauthenticated" || !strings.Contains(f.failText, "no-such-user") {
		t.Errorf("an unknown user: %s %s", f.code, f.failText)
	}
}

func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "below"), 0o755))
	current, err := user.Current()
	must(t, err)
	place := headers{"X-E2b-Default-Directory": dir}
	for _, pty := range []any{nil, message{}} {
		for cwd, want := range map[string]string{"": dir, "below": dir + "/below", "~": current.HomeDir, "/usr": "/usr"} {
			f := d.run(t, message{"process": message{"cmd": "pwd", "cwd": cwd}, "pty": pty}, place).all()
			if got := strings.TrimSpace(f.out.String() + f.pty.String()); got != want {
				t.Errorf("cwd %q: %s, want %s", cwd, got, want)
			}
		}
		f := d.run(t, message{"process": message{"cmd": "pwd", "cwd": "missing"}, "pty": pty}, place)
		if f.code != "invalid_argument" || !strings.Contains(f.failText, "missing") {
			t.Errorf("a missing cwd: %s %s", f.code, f.failText)
		}
		for _, cmd := range []string{"", "/no/such/program", "no-such-program"} {
			if f := d.run(t, message{"process": message{"cmd": cmd}, "pty": pty}, place); f.code != "invalid_argument" {
				t.Errorf("the program %q: %s %s", cmd, f.code, f.failText)
			}
		}
	}
	if list := d.succeeds(t, "process.Process/List", message{}); len(list) != 0 {
		t.Errorf("the list without a running process is %v", list)
	}
}

// TestTimeout: it is that of the process, which gets no signal to end before.
func TestTimeout(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, pty := range []any{nil, message{}} {
		// A child in the group of the process ends with it.
		in := message{"process": bash("trap 'echo TERM' TERM HUP; sleep 1000 & echo child $!; while :; do wait; done"), "pty": pty}
		var f, other *follower
		output := ""
		for limit := 500; !strings.Contains(output, "\n"); limit *= 2 { // a busy machine may take longer to start it
			f = d.run(t, in, headers{"Connect-Timeout-Ms": strconv.Itoa(limit)})
			other = d.follow(t, f.by(), nil)
			f.all()
			output = f.out.String() + f.pty.String()
		}
		if f.code != "deadline_exceeded" || f.end != nil || strings.Contains(output, "TERM") {
			t.Errorf("%s %s, end %v, output %q", f.code, f.failText, f.end, output)
		}
		other.all().wantEnd(message{"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"})
		_, child, _ := strings.Cut(strings.TrimSpace(output), "child ")
		pid, err := strconv.Atoi(child)
		must(t, err)
		wait.Until(t, "the end of the child", func() bool { return ended(pid) })
	}
}

// ended reports whether a process has ended; another process may not have waited for it yet.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestClientThatGoesAway: its process goes on, and another client gets what comes from then on.
func TestClientThatGoesAway(t *testing.T) {
	t.Parallel()
	d := start(t)
	for name, pty := range map[string]any{"stdin": nil, "pty": message{}} {
		f := d.run(t, message{"process": bash("echo before; read; echo after; exit 4"), "pty": pty}, nil)
		f.until("before")
		f.leave()
		again := d.follow(t, f.by(), nil)
		if again.pid != f.pid {
			t.Errorf("%d instead of %d", again.pid, f.pid)
		}
		d.succeeds(t, "process.Process/SendInput", message{"process": f.by(), "input": message{name: "Cg=="}})
		again.all().wantEnd(message{"exitCode": 4.0, "exited": true, "status": "exit status 4", "error": "exit status 4"})
		if got := again.out.String() + again.pty.String(); strings.Contains(got, "before") || !strings.Contains(got, "after") {
			t.Errorf("%s: output %q, want what came after the client connected", name, got)
		}
		// The end can be asked for once more.
		last := d.follow(t, f.by(), nil).all()
		last.wantEnd(again.end)
		if last.pid != f.pid || last.messages != 0 {
			t.Errorf("the end alone: pid %d, %d messages with data", last.pid, last.messages)
		}
		d.refused(t, "process.Process/SendInput", message{"process": f.by(), "input": message{name: "Cg=="}}, 404, "not_found", "ended")
	}
}

// TestTimeoutOfConnect: it is that of the stream.
func TestTimeoutOfConnect(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, pty := range []any{nil, message{}} {
		f := d.run(t, message{"process": bash("read; echo done"), "pty": pty}, nil)
		if other := d.follow(t, f.by(), headers{"Connect-Timeout-Ms": "1"}); other.all().code != "deadline_exceeded" {
			t.Errorf("the stream ended with %q", other.code)
		}
		name := "stdin"
		if pty != nil {
			name = "pty"
		}
		d.succeeds(t, "process.Process/SendInput", message{"process": f.by(), "input": message{name: "Cg=="}})
		f.until("done")
	}
}

// TestSignals: they go to the process alone.
func TestSignals(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, pty := range []any{nil, message{}} {
		in := message{"process": bash("trap 'echo caught' TERM; echo up; while :; do read; done"), "pty": pty}
		f := d.run(t, in, nil)
		f.until("up")
		d.succeeds(t, "process.Process/SendSignal", message{"process": f.by(), "signal": "SIGNAL_SIGTERM"})
		f.until("caught")
		d.succeeds(t, "process.Process/SendSignal", message{"process": f.by(), "signal": "SIGNAL_SIGKILL"})
		f.all().wantEnd(message{"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"})
		d.refused(t, "process.Process/SendSignal", message{"process": f.by(), "signal": "SIGNAL_SIGKILL"}, 404, "not_found", "ended")
	}

	f := d.run(t, message{"process": bash("trap '' TERM; sleep 1000 & echo child $!; read")}, nil)
	f.until("\n")
	_, child, _ := strings.Cut(strings.TrimSpace(f.out.String()), "child ")
	pid, err := strconv.Atoi(child)
	must(t, err)
	defer syscall.Kill(pid, syscall.SIGKILL)
	d.succeeds(t, "process.Process/SendSignal", message{"process": f.by(), "signal": 9})
	f.all().wantEnd(message{"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"})
	if ended(pid) {
		t.Error("the child was killed with its parent")
	}
	d.refused(t, "process.Process/SendSignal", message{"process": f.by(), "signal": "SIGNAL_SIGHUP"}, 501, "unimplemented", "SIGNAL_SIGHUP")
	d.refused(t, "process.Process/SendSignal", message{"process": f.by()}, 501, "unimplemented", "signal")
}

func TestInput(t *testing.T) {
	t.Parallel()
	d := start(t)
	const send, closing = "process.Process/SendInput", "process.Process/CloseStdin"
	input := message{"stdin": "aGkK"}

	f := d.run(t, message{"process": bash("cat; echo end")}, nil) // stdin is open, as old clients expect
	d.succeeds(t, send, message{"process": f.by(), "input": input})
	f.until("hi\n")
	d.refused(t, send, message{"process": f.by(), "input": message{"pty": "aGkK"}}, 500, "internal", "error writing to tty")
	d.refused(t, send, message{"process": f.by(), "input": message{}}, 400, "invalid_argument", "input")
	d.refused(t, send, message{"process": f.by(), "input": message{"stdin": "%"}}, 400, "invalid_argument", "base64")
	d.succeeds(t, closing, message{"process": f.by()})
	f.all().wantEnd(message{"exited": true, "status": "exit status 0"})
	if f.out.String() != "hi\nend\n" {
		t.Errorf("output %q", f.out.String())
	}

	f = d.run(t, message{"process": bash("cat; echo empty; sleep 1000"), "stdin": false}, nil)
	f.until("empty")
	d.refused(t, send, message{"process": f.by(), "input": input}, 500, "internal", "stdin not enabled or closed")
	d.refused(t, closing, message{"process": f.by()}, 500, "internal", "stdin not enabled")

	f = d.run(t, message{"process": bash("echo up; sleep 1000"), "stdin": true}, nil)
	d.succeeds(t, closing, message{"process": f.by()})
	d.succeeds(t, closing, message{"process": f.by()})
	d.refused(t, send, message{"process": f.by(), "input": input}, 500, "internal", "stdin not enabled or closed")

	// A process that reads nothing: the call takes the time that its client gives it.
	f = d.run(t, message{"process": bash("echo up; sleep 1000")}, nil)
	status, out := d.unary(t, send, message{"process": f.by(), "input": message{"stdin": bytes.Repeat([]byte{'x'}, 1<<20)}},
		headers{"Connect-Timeout-Ms": "100"})
	if status != 504 || out["code"] != "deadline_exceeded" {
		t.Errorf("%d %v", status, out)
	}

	f = d.run(t, message{"process": bash("echo up; sleep 1000"), "pty": message{}}, nil)
	d.refused(t, send, message{"process": f.by(), "input": input}, 500, "internal", "error writing to stdin")
	d.refused(t, closing, message{"process": f.by()}, 500, "internal", "error closing stdin")
}

func TestTagsAndList(t *testing.T) {
	t.Parallel()
	d := start(t)
	const list = "process.Process/List"
	config := message{"cmd": "/bin/bash", "args": []string{"-c", "read; exit 5"}, "envs": message{"A": "b"}, "cwd": "/"}
	one := d.run(t, message{"process": config, "tag": "one"}, nil)
	two := d.run(t, message{"process": bash("read"), "pty": message{}, "tag": "two"}, nil)
	third := d.run(t, message{"process": message{"cmd": "cat"}}, nil)
	got, _ := d.succeeds(t, list, message{})["processes"].([]any)
	want := []any{
		message{"pid": float64(one.pid), "tag": "one", "config": message{"cmd": "/bin/bash", "args": []any{"-c", "read; exit 5"},
			"envs": message{"A": "b"}, "cwd": "/"}},
		message{"pid": float64(two.pid), "tag": "two", "config": message{"cmd": "/bin/bash", "args": []any{"-c", "read"}}},
		message{"pid": float64(third.pid), "config": message{"cmd": "cat"}},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the list is\n%v, want\n%v", got, want)
	}

	by := message{"tag": "one"}
	again := d.follow(t, by, nil)
	d.succeeds(t, "process.Process/SendInput", message{"process": by, "input": message{"stdin": "Cg=="}})
	again.all().wantEnd(message{"exitCode": 5.0, "exited": true, "status": "exit status 5", "error": "exit status 5"})
	d.follow(t, by, nil).all().wantEnd(again.end)
	d.succeeds(t, "process.Process/SendSignal", message{"process": message{"tag": "two"}, "signal": "SIGNAL_SIGKILL"})
	two.all()
	got, _ = d.succeeds(t, list, message{})["processes"].([]any)
	if len(got) != 1 {
		t.Errorf("the list of one running process is %v", got)
	}
	// The number of a process may be a string, as that of 64 bits is.
	d.succeeds(t, "process.Process/SendSignal", message{"process": message{"pid": strconv.Itoa(third.pid)}, "signal": "SIGNAL_SIGKILL"})
	third.all()
}

func TestUnknownProcess(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, by := range []message{{"pid": 1 << 30}, {"tag": "no-such-tag"}} {
		for procedure, in := range map[string]message{
			"SendInput":  {"input": message{"stdin": ""}},
			"CloseStdin": {},
			"SendSignal": {"signal": "SIGNAL_SIGKILL"},
			"Update":     {"pty": message{"size": message{"cols": 1, "rows": 1}}},
		} {
			in["process"] = by
			d.refused(t, "process.Process/"+procedure, in, 404, "not_found", "not found")
		}
		if f := d.follow(t, by, nil); f.code != "not_found" {
			t.Errorf("%v: %s %s", by, f.code, f.failText)
		}
	}
	d.refused(t, "process.Process/SendSignal", message{"process": message{}, "signal": 9}, 400, "invalid_argument", "pid or a tag")
	s := d.stream(t, "process.Process/StreamInput", message{}, nil)
	if out, last := s.next(); !last || !strings.Contains(fmt.Sprint(out), "unimplemented") || !strings.Contains(fmt.Sprint(out), "StreamInput") {
		t.Errorf("StreamInput: %v", out)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	d := start(t)
	in := message{"process": message{"cmd": "/bin/bash", "args": []string{"--norc", "-i"}, "envs": message{"TERM": "dumb", "PS1": "> "}},
		"pty": message{"size": message{"cols": 91, "rows": 31}}}
	f := d.run(t, in, nil)
	typed := func(text string) {
		d.succeeds(t, "process.Process/SendInput", message{"process": f.by(), "input": message{"pty": []byte(text)}})
	}
	typed("stty size; echo $TERM\n")
	f.until("31 91\r\ndumb\r\n")
	d.succeeds(t, "process.Process/Update", message{"process": f.by(), "pty": message{"size": message{"cols": 100, "rows": 40}}})
	typed("stty size\n")
	f.until("40 100\r\n")
	d.succeeds(t, "process.Process/Update", message{"process": f.by()})
	d.refused(t, "process.Process/Update", message{"process": f.by(), "pty": message{"size": message{"cols": 0, "rows": 40}}},
		400, "invalid_argument", "rows and cols")
	d.refused(t, "process.Process/Update", message{"process": f.by(), "pty": message{"size": message{"cols": 1 << 16, "rows": 40}}},
		400, "invalid_argument", "rows and cols")
	typed("exit 7\n")
	f.all().wantEnd(message{"exitCode": 7.0, "exited": true, "status": "exit status 7", "error": "exit status 7"})
	d.refused(t, "process.Process/Update", message{"process": f.by(), "pty": message{}}, 404, "not_found", "ended")

	pipe := d.run(t, message{"process": message{"cmd": "cat"}}, nil)
	d.refused(t, "process.Process/Update", message{"process": pipe.by(), "pty": message{"size": message{"cols": 9, "rows": 9}}},
		500, "internal", "no terminal")
}

// TestSilentProcess: its stream shows that it is alive as often as the client asks for.
func TestSilentProcess(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, pty := range []any{nil, message{}} {
		f := d.run(t, message{"process": bash("read"), "pty": pty}, headers{"Keepalive-Ping-Interval": "1"})
		for f.keepAlives == 0 {
			if f.read() {
				t.Fatalf("the stream ended: %v %s", f.end, f.failText)
			}
		}
	}
}
