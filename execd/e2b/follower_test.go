package e2b_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

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
