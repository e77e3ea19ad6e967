package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// egressImage is the sidecar; scripts/images.sh builds it.
const egressImage = "sandbox/egress:dev"

// webServer answers every request with its name.
const webServer = `
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(sys.argv[1].encode())
http.server.ThreadingHTTPServer(("", 80), Page).serve_forever()`

// newOutside returns a world on the engine's default network, which ends with the test.
func newOutside(t *testing.T) conformance.Outside {
	t.Helper()
	o := conformance.Outside{Allowed: runOutside(t, "allowed", webServer, "allowed"),
		Denied: runOutside(t, "denied", webServer, "denied")}
	o.NameServer = runOutside(t, "dns", conformance.NameServer, "allowed.test="+o.Allowed,
		"denied.test="+o.Denied)
	// What a sandbox reaches or not is tried once: these must be there before.
	var dialer net.Dialer
	resolver := net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "udp", net.JoinHostPort(o.NameServer, "53"))
		}}
	wait.Until(t, "the servers outside of the sandbox answer", func() bool {
		for name, address := range map[string]string{"allowed.test.": o.Allowed,
			"denied.test.": o.Denied} {
			connection, err := dialer.DialContext(t.Context(), "tcp",
				net.JoinHostPort(address, "80"))
			if err != nil {
				return false
			}
			_ = connection.Close()
			if found, err := resolver.LookupNetIP(t.Context(), "ip4", name); err != nil ||
				len(found) != 1 || found[0].String() != address {
				return false
			}
		}
		return true
	})
	return o
}

// runOutside runs a program of Python in a container of its own until the test ends, and returns
// its address.
func runOutside(t *testing.T, name string, arguments ...string) (address string) {
	t.Helper()
	name = "e2e-" + name + "-" + uuid.NewString()[:8]
	dockerCLI(t, append([]string{"run", "-d", "--name", name, "--memory", "64m", baseImage,
		"python3", "-c"}, arguments...)...)
	t.Cleanup(func() { dockerCLI(t, "rm", "-f", "-v", name) })
	return strings.TrimSpace(dockerCLI(t, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", name))
}

// sidecarOf returns the sidecar's container.
func (s *service) sidecarOf(t *testing.T, id string) engine.Container {
	t.Helper()
	for _, container := range s.containers(t) {
		if container.Labels["sandbox.internal/id"] == id &&
			container.Labels["sandbox.internal/sidecar"] != "" {
			return container
		}
	}
	t.Fatalf("no sidecar of %s in %v", id, s.containers(t))
	return engine.Container{}
}

// killDaemon kills the egress daemon, and not process 1 of its container.
func (s *service) killDaemon(t *testing.T, id string) {
	t.Helper()
	s.signalDaemon(t, id, "KILL")
}

func (s *service) signalDaemon(t *testing.T, id, signal string) {
	t.Helper()
	dockerCLI(t, "run", "--rm", "--network", "none", "--pid", "container:"+s.sidecarOf(t, id).ID,
		busyboxImage, "sh", "-c", "kill -"+signal+" $(pidof egress)")
}

// sidecars are those of the service at the engine.
func (s *service) sidecars() conformance.Sidecars {
	return conformance.Sidecars{
		KillDaemon: s.killDaemon,
		Kill: func(t *testing.T, id string) {
			t.Helper()
			dockerCLI(t, "kill", s.sidecarOf(t, id).ID)
		},
	}
}

// TestEgress: the whole way from networkPolicy to packets, with the real sidecar.
func TestEgress(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, conformance.Plan{Settings: "[docker]\ndrop_capabilities = []\n" + o.EgressSettings(egressImage)})
	id := s.Running(t, s.Confined("allowed.test"))
	inside := s.Enter(t, id)

	t.Run("row lifecycle/configuration/egress.image", func(t *testing.T) {
		conformance.Reaches(t, inside, "allowed.test")
		conformance.ReachesNot(t, inside, "denied.test")
		conformance.ReachesNot(t, inside, o.Denied)
	})
	t.Run("row lifecycle/networking/rule 4", func(t *testing.T) {
		const netAdmin, netRaw = 1 << 12, 1 << 13
		var bounding, effective uint64
		got := inside.Run(t, "grep -E '^Cap(Bnd|Eff)' /proc/self/status | cut -f2 | tr '\\n' ' '")
		if _, err := fmt.Sscanf(got.Stdout, "%x %x", &effective, &bounding); err != nil {
			t.Fatalf("capabilities: %+v: %v", got, err)
		}
		if bounding == 0 || bounding&(netAdmin|netRaw) != 0 || effective&(netAdmin|netRaw) != 0 {
			t.Errorf("capabilities of the sandbox: effective %x, bounding %x", effective, bounding)
		}
		caps := dockerCLI(t, "inspect", "-f", "{{.HostConfig.CapAdd}} {{.HostConfig.CapDrop}}",
			s.sidecarOf(t, id).ID)
		if !strings.Contains(strings.ReplaceAll(caps, "CAP_", ""), "[NET_ADMIN] [ALL]") {
			t.Errorf("capabilities of the sidecar: %s", caps)
		}
		inside.Want(t,
			"cat /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1\n1\n")
		if got := inside.Run(t, "cat /proc/net/if_inet6"); got.Stdout != "" {
			t.Errorf("the sandbox has an IPv6 address: %s", got.Stdout)
		}
	})
	t.Run("other containers do not reach the sandbox", func(t *testing.T) {
		address := strings.TrimSpace(dockerCLI(t, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", s.sidecarOf(t, id).ID))
		inside.Want(t, "python3 -m http.server 8123 >/dev/null 2>&1 & echo started", "started\n")
		wait.Until(t, "the host reaches the sandbox's port", func() bool {
			connection, err := net.Dial("tcp", net.JoinHostPort(address, "8123"))
			return err == nil && connection.Close() == nil
		})
		got := dockerCLI(t, "run", "--rm", busyboxImage, "sh", "-c", fmt.Sprintf(
			"for port in 8123 18080 44772; do nc -w 1 %s $port </dev/null >/dev/null 2>&1 && echo $port is reached; done; echo tried", address))
		if got != "tried\n" {
			t.Errorf("ports of the sandbox, from a container beside it: %q", got)
		}
	})
	conformance.Egress(t, s.Service, id, o, s.sidecars())
}

// TestEgressSurvivesTheService: a service that is killed, and one that loses its database, find
// sidecars and policies again.
func TestEgressSurvivesTheService(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true, Settings: newOutside(t).EgressSettings(egressImage)})
	conformance.EgressSurvivesTheService(t, s.Service)
}

// TestEgressWithoutUpstream: the name servers of a sandbox are those of its network when it was
// made, although root in the sandbox writes others into the file that it shares with the egress
// daemon.
func TestEgressWithoutUpstream(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	rogue := runOutside(t, "rogue", conformance.NameServer, "allowed.test="+o.Denied)
	s := start(t, conformance.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	id := s.Running(t, s.Confined("allowed.test"))
	inside := s.Enter(t, id)
	inside.Want(t, "echo nameserver "+rogue+" > /etc/resolv.conf && cat /etc/resolv.conf",
		"nameserver "+rogue+"\n")
	s.killDaemon(t, id)
	wait.Until(t, "the egress daemon is started again",
		func() bool { return strings.Contains(s.Get(t, id).Status.Message, "restarts so far: 1") })
	if got := inside.Run(t, "getent ahostsv4 allowed.test"); strings.Contains(got.Stdout,
		o.Denied) {
		t.Errorf("the name server that root has written into resolv.conf is asked: %+v", got)
	}
	conformance.ReachesNot(t, inside, "allowed.test")
	conformance.ReachesNot(t, inside, o.Denied)
}

// TestEgressRefusals: what cannot be had is refused, as without an image.
func TestEgressRefusals(t *testing.T) {
	t.Parallel()
	plain := start(t, conformance.Plan{})
	id := plain.Running(t, idle())
	for method, body := range map[string]string{"GET": "", "PUT": "{}",
		"PATCH": `[{"action":"deny","target":"a.example"}]`, "DELETE": `["a.example"]`} {
		conformance.WantProblem(t,
			plain.Send(t, method, "/v1/sandboxes/"+id+"/network-policy", body, "Content-Type",
				"application/json"), http.StatusConflict, "CONFLICT", "has no egress sidecar")
	}
	for _, path := range []string{"/network-decisions", "/network-decisions/proposal"} {
		conformance.WantProblem(t, plain.Send(t, http.MethodGet, "/v1/sandboxes/"+id+path, ""),
			http.StatusConflict, "CONFLICT", "has no egress sidecar")
	}
	s := start(t, conformance.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q", egressImage)})
	body, err := json.Marshal(s.Confined("*.*.example"))
	if err != nil {
		t.Fatal(err)
	}
	conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", string(body)),
		http.StatusBadRequest, "INVALID_REQUEST_BODY", "networkPolicy.egress[0].target")
}
