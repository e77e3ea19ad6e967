package clients_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/test/wait"
)

// backwards is a server in the sandbox that reads a whole connection, and then sends it back from
// its last byte to its first.
const backwards = `
import socketserver
class Backwards(socketserver.BaseRequestHandler):
    def handle(self):
        parts = []
        while True:
            part = self.request.recv(65536)
            if not part:
                break
            parts.append(part)
        self.request.sendall(b"".join(parts)[::-1])
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128
Server(("127.0.0.1", 7001), Backwards).serve_forever()
`

// sshForwarding reaches ports of the sandbox that are not of HTTP.
func sshForwarding(t *testing.T, c *sshClient) {
	c.inside(t, "nohup python3 -c '"+backwards+"' >/tmp/backwards.log 2>&1 &")
	socket, second := filepath.Join(c.directory, "forwarded"), filepath.Join(c.directory, "second")
	dynamic := freePort(t)
	master := c.begin(t, c.command(t, "ssh", "-N", "-o", "ExitOnForwardFailure yes", "-L", socket+":localhost:7001",
		"-L", second+":[::1]:7001", "-D", dynamic, c.host))
	dial := func(path string) (net.Conn, error) { return net.DialTimeout("unix", path, wait.Patience()) }
	for _, path := range []string{socket, second} {
		wait.Until(t, "the server behind "+filepath.Base(path)+" answers", func() bool {
			conn, err := dial(path)
			return err == nil && isBackwards(conn, []byte("abc")) == nil
		})
	}
	var many sync.WaitGroup
	for i := range 40 {
		data := randomBytes(t, 100_000+i*7)
		many.Go(func() {
			conn, err := dial(socket)
			if err == nil {
				err = isBackwards(conn, data)
			}
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	many.Wait()
	large := randomBytes(t, 8<<20+5)
	for _, host := range []string{"localhost", "127.0.0.1", c.host} {
		conn, err := socks(dynamic, host, 7001)
		if err == nil {
			err = isBackwards(conn, large)
		}
		if err != nil {
			t.Errorf("by SOCKS to %s: %v", host, err)
		}
	}
	if conn, err := socks(dynamic, "example.com", 80); err == nil {
		_ = conn.Close()
		t.Error("by SOCKS another host is reached")
	}
	master.kill()
	wait.For(t, "the end of ssh", master.ended)

	if got := c.run(t, bytes.NewReader([]byte("abc")), "ssh", "-W", "localhost:7001", c.host); got.stdout != "cba" || got.code != 0 {
		t.Errorf("with -W it is %+v", got)
	}
	if got := c.commandLine.run(t, "abc", "ssh", "box", "--", "-W", "box:7001"); got != (outcome{0, "cba", ""}) {
		t.Errorf("with the tool it is %+v", got)
	}
	for destination, says := range map[string]string{
		"example.com:80": `port forwarding to "example.com": only ports of the sandbox`, "localhost:9": "no process listens on port 9",
	} {
		if got := c.run(t, nil, "ssh", "-W", destination, c.host); got.code == 0 || !strings.Contains(got.stderr, says) {
			t.Errorf("to %s it is %+v", destination, got)
		}
	}
	got := c.run(t, nil, "ssh", "-o", "ExitOnForwardFailure yes", "-R", "0:localhost:9", c.host, "true")
	if got.code != 255 || !strings.Contains(got.stderr, "ssh -R") {
		t.Errorf("of a port of the sandbox it is %+v", got)
	}
}

// freePort returns an address of this machine on which no program listens.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// isBackwards sends data and the end of it, and returns an error unless it comes back from its last
// byte to its first.
func isBackwards(conn net.Conn, data []byte) error {
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(wait.Deadline()); err != nil {
		return err
	}
	if _, err := conn.Write(data); err != nil {
		return err
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	for i, b := range data {
		if len(got) != len(data) || got[len(got)-1-i] != b {
			return fmt.Errorf("%d bytes came back of %d, or other ones", len(got), len(data))
		}
	}
	return nil
}

// socks connects to a port of a host through a SOCKS server (RFC 1928).
func socks(server, host string, port uint16) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", server, wait.Patience())
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(wait.Deadline()); err != nil {
		return nil, err
	}
	request := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...)
	if _, err := conn.Write(binary.BigEndian.AppendUint16(request, port)); err != nil {
		return nil, err
	}
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if !bytes.Equal(answer[:4], []byte{5, 0, 5, 0}) {
		_ = conn.Close()
		return nil, fmt.Errorf("the SOCKS server refuses: %v", answer)
	}
	return conn, nil
}
