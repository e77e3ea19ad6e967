package app_test

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// talk is a program in the sandbox that sends a line over and over, and prints what comes back and
// how it ends.
const talk = `
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
n = 0
try:
    while True:
        s.sendall(b"%d\n" % n)
        if not s.recv(100):
            raise ConnectionError("closed")
        print("line", n, flush=True)
        n += 1
        time.sleep(0.01)
except OSError as e:
    print("cut", type(e).__name__, flush=True)`

// conversation is a connection that stays open.
type conversation struct{ lines chan string }

func (s *sandbox) converse(t *testing.T, host string) *conversation {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "docker", "exec", s.name, "python3", "-c", talk, host, fmt.Sprint(s.echo.Port()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &conversation{lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c.lines)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			select {
			case c.lines <- lines.Text():
			case <-ctx.Done():
			}
		}
		_ = cmd.Wait() // killed, or ended as it said
	}()
	t.Cleanup(func() { cancel(); wait.For(t, "the end of the program", done) })
	return c
}

// next waits for a line with the prefix.
func (c *conversation) next(t *testing.T, prefix string) {
	t.Helper()
	timeout := time.After(wait.Patience())
	last := ""
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("the conversation ended without %q; its last line was %q", prefix, last)
			}
			if last = line; strings.HasPrefix(line, prefix) {
				return
			}
			if strings.HasPrefix(line, "cut") {
				t.Fatalf("the conversation was cut: %s; wanted %q", line, prefix)
			}
		case <-timeout:
			t.Fatalf("no %q within %s; the last line was %q", prefix, wait.Patience(), last)
		}
	}
}

// more waits for several lines, so that at least one of them was sent from now on.
func (c *conversation) more(t *testing.T) {
	t.Helper()
	for range 5 {
		c.next(t, "line")
	}
}
