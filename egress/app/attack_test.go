package app_test

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	gen "sandbox.internal/gen/egress"
	"sandbox.internal/test/random"
)

// attack is what root in a sandbox can do to its egress daemon without a token, in bounded numbers:
// connections that stay, queries that announce much and send little, floods of queries for names
// that are denied, allowed and unanswered, requests with long headers, and messages made of chance.
// It prints the end of what it did.
const attack = `
import os, random, socket, struct, time
rng = random.Random(int(os.environ["SEED"]))
def query(name, kind=1):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    return struct.pack(">HHHHHH", rng.randrange(65536), 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def prefixed(data):
    return struct.pack(">H", len(data)) + data
def mutated(data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        what = rng.randrange(4)
        at = rng.randrange(len(data) + 1)
        if what == 0 and at < len(data): data[at] = rng.randrange(256)
        elif what == 1: data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
        elif what == 2: del data[at:at + rng.randrange(8)]
        else: data[at:at] = b"\xc0\x0c" * rng.randrange(700)
    return bytes(data[:65000])
held = []
def connect(address):
    c = socket.socket()
    c.settimeout(5)
    try:
        c.connect(address)
        held.append(c)
        return c
    except OSError:
        c.close()
def send(c, data):
    try:
        if c: c.sendall(data)
    except OSError:
        pass
dns, api = ("192.0.2.53", 53), ("127.0.0.1", 18080)
for i in range(1500):
    send(connect(dns), b"\xff\xff" + bytes(1000) if i % 2 else prefixed(query("denied.test")) * 20)
for i in range(500):
    send(connect(api), b"GET / HTTP/1.1\r\nX: " + b"x" * 60000)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.setblocking(False)
def throw(data):
    try:
        u.sendto(data, dns)
    except OSError:
        pass
for i in range(60000):
    throw(query(("n%d.test" if i % 3 else "denied%d.test") % (i % 20000)))
for i in range(3000):
    throw(query("slow%d." % i + ("x" * 60 + "." ) * 3 + "test"))
for i in range(20000):
    throw(mutated(query("n1.test")))
for i in range(1000):
    c = connect(dns)
    send(c, prefixed(mutated(query("n1.test"))))
    if len(held) > 3000: held.pop(0).close()
print("done")`

// TestRootCannotEndTheDaemon fuzzes and floods a running sidecar within the limits that the service
// gives it.
func TestRootCannotEndTheDaemon(t *testing.T) {
	s := start(t, `{"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.test"}, {"action": "deny", "target": "denied.test"}]}`)
	seed := strconv.Itoa(random.New(t).IntN(1 << 30))
	_, daemon := s.processes(t)
	s.passes(t, "ulimit -n 8192; SEED="+seed+" "+python(attack), "done")
	var health gen.Health
	if err := s.call(t, http.MethodGet, "/healthz", "", &health); err != nil || health.Restarts != 0 {
		t.Fatalf("the egress daemon was started again %d times (%v)", health.Restarts, err)
	}
	if _, now := s.processes(t); now != daemon {
		t.Fatalf("the egress daemon is process %d, and was %d", now, daemon)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(daemon) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") || strings.HasPrefix(line, "Threads") {
			t.Log(strings.Join(strings.Fields(line), " "))
		}
	}
	// Queries that no server answers keep their places for 5 s.
	s.passes(t, "timeout 6 sh -c 'until getent ahostsv4 web1.test; do sleep 0.1; done'", s.web1.Addr().String())
	s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
	s.fails(t, fetch("http://denied.test:$port2/"))
	s.must(t, http.MethodPut, "/policy", `{"defaultAction": "deny"}`)
	s.fails(t, fetch("http://$web1ip:$port1/"))
}
