package clients_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// cutter is a stable address of a service that comes and goes.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &cutter{Listener: listener}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			server, err := net.Dial("tcp", f.to)
			if err != nil {
				f.mu.Unlock()
				_ = client.Close()
				continue
			}
			f.conns = append(f.conns, client, server)
			f.mu.Unlock()
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				pumps.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.cut()
		pumps.Wait()
	})
	return f
}

// lead sends new connections to a service.
func (f *cutter) lead(url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = strings.TrimPrefix(url, "http://")
}

// cut resets all connections.
func (f *cutter) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	f.conns = nil
}

// TestCommandLineResumes: nothing is lost or printed twice when connections are cut and when the
// service starts again.
func TestCommandLineResumes(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	f := newCutter(t)
	f.lead(s.URL)
	c := newCommandLine(t, "http://"+f.Addr().String())
	const lines = 40
	var want strings.Builder
	want.WriteString("begins\n")
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	// Each line waits for a file, so that the test decides when it is written.
	script := fmt.Sprintf(`echo begins; i=0; while [ $i -lt %d ]; do `+
		`while [ ! -e /tmp/go-$((i/10)) ]; do sleep 0.05; done; `+
		`echo line $i; i=$((i+1)); done`, lines)
	c.must(t, "create", busyboxImage, "--name", "writer", "--", "sh", "-c", script+"; sleep 1000")
	all := c.begin(t, c.command(t, "logs", "-f", "writer"))
	last := c.begin(t, c.command(t, "logs", "-f", "--tail", "3", "writer"))
	program := c.begin(t, c.command(t, "exec", "writer", "sh", "-c", script))
	sessions := []*session{all, last, program}
	for _, session := range sessions {
		session.await(t, "begins\n") // before more is written than the end that one asks for
	}
	for step := range 4 {
		c.must(t, "exec", "writer", "touch", fmt.Sprintf("/tmp/go-%d", step))
		for _, session := range sessions {
			session.await(t, fmt.Sprintf("line %d\n", 10*step+9))
		}
		switch step {
		case 0:
			f.cut()
		case 1:
			s.Halt(t)
			f.cut()
			s.Boot(t)
			f.lead(s.URL)
		case 2:
			f.cut()
		}
	}
	program.end(t, 0)
	for _, session := range sessions[:2] {
		session.interrupt(t)
		session.end(t, 130)
	}
	for i, session := range sessions {
		if got := session.text(); got != want.String() {
			t.Errorf("stream %d printed:\n%s", i, got)
		}
	}
}
