package api_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

const strangersToken = "open-sesame"

// strangers opens connections to a daemon, as any process in the sandbox can, and says something on
// each.
func strangers(t *testing.T, d *daemon, count int, said []byte, then func(net.Conn)) {
	t.Helper()
	var all sync.WaitGroup
	for part := range slices.Chunk(make([]struct{}, count), count/8) {
		var conns []net.Conn
		t.Cleanup(func() {
			for _, conn := range conns {
				conn.Close()
			}
		})
		all.Go(func() {
			for range part {
				conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
				if errors.Is(err, syscall.ECONNRESET) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				conns = append(conns, conn)
				_ = conn.SetDeadline(wait.Deadline())
				_, _ = conn.Write(said) // the daemon may have closed it
				then(conn)
			}
		})
	}
	all.Wait()
}

// TestStrangersTakeNoMemory: requests that begin and do not go on take a bounded amount of it, and
// keep no one out who has the token.
func TestStrangersTakeNoMemory(t *testing.T) {
	execd := &child{Args: []string{"--access-token=" + strangersToken}}
	d := execd.start(t, newTransport(t))
	before := execd.holds(t)
	strangers(t, d, 2000, []byte("GET /ping HTTP/1.1\r\nA: "+strings.Repeat("x", 250_000)), func(net.Conn) {})
	response, err := d.client.GetMetrics(t.Context(), nil, header("X-EXECD-ACCESS-TOKEN", strangersToken))
	body(t, response, err)
	if after := execd.holds(t); after.Heap > before.Heap+100<<20 {
		t.Errorf("the heap has grown from %d to %d MiB", before.Heap>>20, after.Heap>>20)
	}
}

// TestStrangersTakeNoDescriptors: connections that wait leave a command what it needs.
func TestStrangersTakeNoDescriptors(t *testing.T) {
	execd := &child{Args: []string{"--access-token=" + strangersToken}, Descriptors: 512}
	d := execd.start(t, newTransport(t))
	gate := filepath.Join(t.TempDir(), "gate")
	must(t, syscall.Mkfifo(gate, 0o600))
	release, err := os.OpenFile(gate, os.O_RDWR, 0)
	must(t, err)
	defer release.Close()
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "read -r go < " + gate + "; yes | head -c 2097152"},
		header("X-EXECD-ACCESS-TOKEN", strangersToken))
	events := d.stream(t, response, err)
	strangers(t, d, 600, []byte("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"), func(conn net.Conn) {
		conn.SetReadDeadline(time.Now().Add(2 * time.Second)) // without descriptors there is no answer
		_, _ = conn.Read(make([]byte, 1))
	})
	_, err = release.WriteString("\n")
	must(t, err)
	events.sparse = true
	for _, e := range events.all(1) {
		if e.Type == "status" {
			t.Errorf("the stream says %q", e.Text)
		}
	}
}
