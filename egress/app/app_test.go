package app_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	gen "sandbox.internal/gen/egress"
	"sandbox.internal/test/wait"
)

const fewNames = `{"defaultAction": "deny", "egress": [
	{"action": "allow", "target": "web1.test"}, {"action": "allow", "target": "alias.test"}, {"action": "allow", "target": "*.wild.test"},
	{"action": "allow", "target": "echo.test"}, {"action": "allow", "target": "rebind.test"}, {"action": "allow", "target": "meta.test"},
	{"action": "allow", "target": "loop.test"}, {"action": "deny", "target": "$web2ip"}]}`

func TestTheFirewallHolds(t *testing.T) {
	s := start(t, fewNames)

	t.Run("allowed names pass", func(t *testing.T) {
		s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
		s.passes(t, fetch("http://alias.test:$port1/"), "this is web1")
		s.passes(t, fetch("http://x.wild.test:$port1/"), "this is web1")
		s.passes(t, "getent ahostsv4 WEB1.test", s.web1.Addr().String())
	})
	t.Run("denied names do not", func(t *testing.T) {
		s.fails(t, "getent hosts web2.test")
		s.fails(t, "getent hosts wild.test")
		s.fails(t, "getent hosts nobody.example.com")
		s.fails(t, fetch("http://web2.test:$port2/"))
	})
	t.Run("addresses that no answer brought do not pass", func(t *testing.T) {
		s.fails(t, fetch("http://$web2ip:$port2/"))
		s.fails(t, fetch("http://$echoip:$echoport/")) // its name is allowed, but was not asked for
		s.passes(t, python(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    for _ in range(2):
        s.sendto(b"x", ("$web2ip", 9999))
    print("sent")
except PermissionError:
    print("refused at once")`), "refused at once")
	})
	t.Run("another resolver is not reached", func(t *testing.T) {
		query := `
import socket, struct
def query(name):
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0\0\x01\0\x01"
def rcode(answer):
    return answer[3] & 15
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(30)
u.sendto(query("secret.test"), ("$rogueip", 53))
print("udp", rcode(u.recv(4096)))
c = socket.create_connection(("$rogueip", 53), 30)
q = query("secret.test")
c.sendall(struct.pack(">H", len(q)) + q)
print("tcp", rcode(c.recv(4096)[2:]))`
		s.passes(t, python(query), "udp 3\ntcp 3")
		s.passes(t, python(`
import socket
for port in 853, 443, 5353:
    try:
        socket.create_connection(("$rogueip", port), 30)
        print("connected")
    except ConnectionRefusedError:
        print("refused")`), "refused\nrefused\nrefused")
		if n := s.asked.Load(); n != 0 {
			t.Errorf("the other resolver was asked %d times", n)
		}
	})
	t.Run("an edited resolv.conf changes nothing", func(t *testing.T) {
		s.passes(t, "cp /etc/resolv.conf /tmp/resolv.conf && echo nameserver $rogueip > /etc/resolv.conf && getent hosts web1.test", s.web1.Addr().String())
		s.fails(t, "getent hosts secret.test")
		s.passes(t, "cat /tmp/resolv.conf > /etc/resolv.conf && echo back", "back")
		if n := s.asked.Load(); n != 0 {
			t.Errorf("the other resolver was asked %d times", n)
		}
	})
	t.Run("names that lead to denied addresses are not answered", func(t *testing.T) {
		for _, name := range []string{"rebind.test", "meta.test", "loop.test"} {
			s.fails(t, "getent ahostsv4 "+name)
		}
		s.fails(t, fetch("http://rebind.test:$port2/"))
		s.fails(t, fetch("http://169.254.169.254/"))
	})
	t.Run("there is no IPv6", func(t *testing.T) {
		s.passes(t, "cat /proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
		s.fails(t, fetch("'http://[2001:db8::2]:$port2/'"))
	})
	t.Run("what comes in is answered", func(t *testing.T) {
		addr := command(t, "docker", "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.name+"-s")
		for _, port := range []string{"8123", "53"} {
			command(t, "docker", "exec", "-d", s.name, "python3", "-m", "http.server", port)
			wait.Succeeds(t, "the sandbox's server answers", func() error {
				response, err := wait.Client().Get("http://" + net.JoinHostPort(addr, port) + "/")
				if err != nil {
					return err
				}
				return response.Body.Close()
			})
		}
	})
}

func TestRootInTheSandboxCannotOpenTheFirewall(t *testing.T) {
	s := start(t, fewNames)
	t.Run("a mark cannot be set", func(t *testing.T) {
		s.passes(t, python(`
import socket
s = socket.socket()
try:
    s.setsockopt(socket.SOL_SOCKET, 36, 1)
    print("set")
except PermissionError:
    print("not permitted")`), "not permitted")
	})
	t.Run("not even with NET_RAW does a mark make packets pass", func(t *testing.T) {
		out := command(t, "docker", "run", "--rm", "--network", "container:"+s.name+"-s", "--cap-drop", "NET_ADMIN", "--cap-add", "NET_RAW",
			"sandbox/base:dev", "bash", "-c", s.expand(python(`
import socket, struct
for mark in 1, 2, 3, 0xffffffff, 0xfffffffe:
    s = socket.socket()
    s.settimeout(30)
    try:
        s.setsockopt(socket.SOL_SOCKET, 36, struct.pack("I", mark))
    except PermissionError:
        pass # an older kernel
    try:
        s.connect(("$web2ip", $port2))
        print("connected")
    except ConnectionRefusedError:
        print("refused")`)))
		if strings.Contains(out, "connected") || strings.Count(out, "refused") != 5 {
			t.Errorf("got %q", out)
		}
	})
	t.Run("netfilter cannot be changed", func(t *testing.T) {
		// The egress daemon itself is the best tool to change the firewall with.
		binary := t.TempDir() + "/egress"
		command(t, "docker", "cp", s.name+"-s:/egress", binary)
		command(t, "docker", "cp", binary, s.name+":/egress")
		out, err := s.sh(t, "/egress --port 0 --policy '{}' --state-dir /tmp/state --upstream $dnsip")
		if err == nil || !strings.Contains(out, "operation not permitted") {
			t.Errorf("the guard ended with %v and %q", err, out)
		}
	})
	t.Run("interfaces and routes cannot be changed", func(t *testing.T) {
		s.passes(t, python(`
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"eth0", 0)) # down
    print("changed")
except PermissionError:
    print("not permitted")
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    print("opened")
except PermissionError:
    print("not permitted")`), "not permitted\nnot permitted")
	})
	t.Run("a socket bound to an interface goes no other way", func(t *testing.T) {
		s.passes(t, python(`
import socket
for host, port in ("$web2ip", $port2), ("127.0.0.1", 80):
    s = socket.socket()
    s.settimeout(30)
    s.setsockopt(socket.SOL_SOCKET, 25, b"eth0")
    try:
        s.connect((host, port))
        print("connected")
    except OSError:
        print("refused")
for port in $port2, 53:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 25, b"eth0")
    try:
        s.sendto(b"x", ("$rogueip", port))
        print("sent")
    except PermissionError:
        print("refused")`), "refused\nrefused\nrefused\nrefused")
	})
	t.Run("the API needs the token", func(t *testing.T) {
		s.passes(t, "curl -s -o /dev/null -w '%{http_code}' -X PUT -H 'Content-Type: application/json' -d '{}' http://127.0.0.1:18080/policy", "401")
	})
	s.fails(t, fetch("http://$web2ip:$port2/"))
	s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
}

func TestChangesHoldAtOnce(t *testing.T) {
	s := start(t, fewNames)
	byName := s.converse(t, "echo.test")
	byName.more(t)

	s.must(t, http.MethodPatch, "/policy", `[{"action": "allow", "target": "$web2ip"}]`)
	s.passes(t, fetch("http://$web2ip:$port2/"), "this is web2")
	byName.more(t) // what has nothing to do with a change goes on

	s.must(t, http.MethodDelete, "/policy", `["$web2ip"]`)
	s.fails(t, fetch("http://$web2ip:$port2/"))
	byName.more(t)

	s.must(t, http.MethodDelete, "/policy", `["echo.test"]`)
	byName.next(t, "cut")
	s.fails(t, "getent hosts echo.test")
	s.fails(t, fetch("http://$echoip:$echoport/"))

	s.must(t, http.MethodPut, "/policy", `{}`)
	s.passes(t, "getent hosts echo.test", s.echo.Addr().String())
	byAddress := s.converse(t, s.echo.Addr().String())
	byAddress.more(t)
	s.must(t, http.MethodPut, "/policy", `{"egress": [{"action": "deny", "target": "$echoip"}]}`)
	byAddress.next(t, "cut")

	// A connection that was open before goes on under a stricter policy that allows its name.
	s.must(t, http.MethodPut, "/policy", `{}`)
	again := s.converse(t, "echo.test")
	again.more(t)
	s.must(t, http.MethodPut, "/policy", `{"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.test"}]}`)
	again.more(t)

	var answer gen.Error
	response, err := s.send(t.Context(), http.MethodPut, "/policy", `{"egress": [{"action": "allow", "target": "1.2.3"}]}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusBadRequest || !strings.HasPrefix(answer.Message, "egress[0].target: ") {
		t.Errorf("a bad policy gave %s, %+v, %v", response.Status, answer, err)
	}
	again.more(t)
}

// ask is a query from always the same port. An egress daemon that was started again has another
// port than the one before.
var ask = python(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 20053))
s.settimeout(5)
s.sendto(b"\0\x07\1\0\0\1\0\0\0\0\0\0\4web1\4test\0\0\1\0\1", ("$rogueip", 53))
s.recv(999)
print("answered")`)

func TestNothingPassesWithoutTheDaemon(t *testing.T) {
	s := start(t, fewNames)
	s.must(t, http.MethodPatch, "/policy", `[{"action": "allow", "target": "$web2ip"}]`)
	conversation := s.converse(t, "echo.test")
	conversation.more(t)
	s.passes(t, fetch("http://$web2ip:$port2/"), "this is web2")
	s.passes(t, ask, "answered")

	goOn := s.holdDaemonDead(t)
	s.fails(t, fetch("http://$web2ip:$port2/"))
	s.fails(t, fetch("http://web1.test:$port1/"))
	s.fails(t, "getent hosts web1.test")
	s.passes(t, python(`
import socket
l = socket.create_server(("127.0.0.1", 0))
socket.create_connection(l.getsockname(), 30)
print("the loopback stays")`), "the loopback stays")
	// No other program answers in the sidecar's place, or keeps its place.
	s.passes(t, python(`
import errno, socket
for host in "", "127.0.0.1", "127.0.0.9", socket.gethostbyname(socket.gethostname()):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((host, 18080))
        print("bound")
    except OSError as e:
        print(errno.errorcode[e.errno])`), strings.TrimSpace(strings.Repeat("EADDRINUSE\n", 4)))
	err := s.inside(t, func() error {
		timeout := unix.NsecToTimeval(int64(time.Second))
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 18080}); err == nil {
			return errors.New("a program answers on the API's port")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	if err := goOn(); err != nil {
		t.Fatal(err)
	}
	var health gen.Health
	wait.Succeeds(t, "the egress daemon is back", func() error {
		if err := s.call(t, http.MethodGet, "/healthz", "", &health); err != nil {
			return err
		}
		if health.Restarts == 0 {
			return errors.New("the egress daemon has not been restarted")
		}
		return nil
	})
	s.passes(t, ask, "answered")
	s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
	s.passes(t, fetch("http://$web2ip:$port2/"), "this is web2") // the policy is the one that was changed
	s.fails(t, "getent hosts web2.test")
	s.fails(t, fetch("http://$rogueip:$port2/"))
}
