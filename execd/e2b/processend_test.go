package e2b_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/wait"
)

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
		// A bash whose signal comes right before it waits runs the trap when it has waited.
		in := message{"process": bash("trap 'echo caught' TERM; echo up; while :; do read -t 0.05; done"), "pty": pty}
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
