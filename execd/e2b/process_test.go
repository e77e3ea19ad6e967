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
	"testing"
)

// bash is the configuration that the clients send for a command line.
func bash(line string) message {
	return message{"cmd": "/bin/bash", "args": []string{"-c", line}}
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
