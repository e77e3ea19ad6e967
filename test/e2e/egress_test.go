package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/sse"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/lives"
)

// egressImage is the sidecar; scripts/images.sh builds it.
const egressImage = "sandbox/egress:dev"

// outside is the world of these tests: two web servers on the engine's default network, and name
// servers that have them as allowed.test and denied.test.
type outside struct{ allowed, denied, dns string }

// webServer answers every request with its name.
const webServer = `
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(sys.argv[1].encode())
http.server.ThreadingHTTPServer(("", 80), Page).serve_forever()`

// newOutside returns a world that ends with the test.
func newOutside(t *testing.T) outside {
	t.Helper()
	o := outside{allowed: runOutside(t, "allowed", webServer, "allowed"),
		denied: runOutside(t, "denied", webServer, "denied")}
	o.dns = runOutside(t, "dns", lives.NameServer, "allowed.test="+o.allowed,
		"denied.test="+o.denied)
	// What a sandbox reaches or not is tried once: these must be there before.
	var dialer net.Dialer
	resolver := net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "udp", net.JoinHostPort(o.dns, "53"))
		}}
	lives.Eventually(t, "the servers outside of the sandbox answer", func() bool {
		for name, address := range map[string]string{"allowed.test.": o.allowed,
			"denied.test.": o.denied} {
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

func egressSettings(o outside) string {
	return fmt.Sprintf("[egress]\nimage = %q\nupstream = [%q]\n", egressImage, o.dns)
}

// confined asks for a sandbox with a policy that allows nothing but those targets.
func confined(targets ...string) lifecycle.CreateSandboxRequest {
	r := lives.Request(baseImage, "sleep", "1000")
	deny := lifecycle.NetworkActionDeny
	r.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: &deny}
	for _, target := range targets {
		r.NetworkPolicy.Egress = append(r.NetworkPolicy.Egress,
			lifecycle.EgressRule{Action: lifecycle.NetworkActionAllow, Target: target})
	}
	return r
}

// gets and cannot say what a request from inside the sandbox must come to.
func gets(t *testing.T, b *lives.Box, host string) {
	t.Helper()
	name := strings.TrimSuffix(host, ".test")
	if got := b.Run(t, fetchFrom(host)); got.Stdout != name {
		t.Errorf("the sandbox does not reach %s: %+v", host, got)
	}
}

func cannot(t *testing.T, b *lives.Box, host string) {
	t.Helper()
	if got := b.Run(t, fetchFrom(host)); got.Code == 0 || got.Stdout != "" {
		t.Errorf("the sandbox reaches %s: %+v", host, got)
	}
}

func fetchFrom(host string) string {
	return "curl --silent --noproxy '*' --connect-timeout 10 --max-time 20 http://" + host + "/"
}

func (s *service) policy(t *testing.T, method, id, body string) lifecycle.NetworkPolicy {
	t.Helper()
	got := s.Send(t, method, "/v1/sandboxes/"+id+"/network-policy", body, "Content-Type",
		"application/json")
	if got.Status != http.StatusOK {
		t.Fatalf("%s network-policy %s: %s", method, body, got)
	}
	policy, err := lives.Decode[lifecycle.NetworkPolicy](got)
	if err != nil {
		t.Fatal(err)
	}
	return policy
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

// killGuard kills the guard, and not process 1 of its container.
func (s *service) killGuard(t *testing.T, id string) {
	t.Helper()
	s.signalGuard(t, id, "KILL")
}

func (s *service) signalGuard(t *testing.T, id, signal string) {
	t.Helper()
	dockerCLI(t, "run", "--rm", "--network", "none", "--pid", "container:"+s.sidecarOf(t, id).ID,
		busyboxImage, "sh", "-c", "kill -"+signal+" $(pidof egress)")
}

// TestEgress: the whole way from networkPolicy to packets, with the real sidecar.
func TestEgress(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, lives.Plan{Settings: "[docker]\ndrop_capabilities = []\n" + egressSettings(o)})
	id := s.Running(t, confined("allowed.test"))
	inside := s.Enter(t, id)
	path := "/v1/sandboxes/" + id

	t.Run("row lifecycle/configuration/egress.image", func(t *testing.T) {
		gets(t, inside, "allowed.test")
		cannot(t, inside, "denied.test")
		cannot(t, inside, o.denied)
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
	t.Run("changes", func(t *testing.T) {
		if got := s.policy(t, http.MethodGet, id, ""); lives.Value(got.DefaultAction) != "deny" ||
			len(got.Egress) != 1 {
			t.Errorf("policy: %+v", got)
		}
		events := s.StreamEvents(t, path+"/events")
		s.policy(t, http.MethodPatch, id, `[{"action":"allow","target":"denied.test"}]`)
		events.Until(func(e lives.StreamEvent) bool {
			return e.Type == "networkPolicy" &&
				len(e.NetworkPolicy.Egress) == 2
		})
		gets(t, inside, "denied.test")
		if got := s.policy(t, http.MethodDelete, id, `["denied.test"]`); len(got.Egress) != 1 {
			t.Errorf("policy after DELETE: %+v", got)
		}
		cannot(t, inside, "denied.test")
		gets(t, inside, "allowed.test")
		s.policy(t, http.MethodPut, id, `{}`)
		gets(t, inside, "denied.test")
		lives.WantProblem(t,
			s.Send(t, http.MethodPut, path+"/network-policy",
				`{"egress":[{"action":"deny","target":"no target"}]}`),
			http.StatusBadRequest, "INVALID_REQUEST_BODY", "egress[0].target")
		s.policy(t, http.MethodPut, id,
			`{"defaultAction":"deny","egress":[{"action":"allow","target":"allowed.test"}]}`)
	})
	t.Run("decisions", func(t *testing.T) {
		cannot(t, inside, "denied.test")
		lives.Eventually(t, "the refusal is among the decisions", func() bool {
			return strings.Contains(s.Send(t, http.MethodGet, path+"/network-decisions", "").Body,
				`"target":"denied.test"`)
		})
		if got := s.Send(t, http.MethodGet, path+"/network-decisions/proposal",
			""); got.Status != http.StatusOK || !strings.Contains(got.Body, "allowed.test") {
			t.Errorf("proposal: %s", got)
		}
	})
	t.Run("decisions as they come", func(t *testing.T) {
		response, end := s.Open(t, path+"/network-decisions", "Accept", "text/event-stream")
		defer end()
		events := sse.NewReader(response.Body, 1<<20)
		await := func(text string) {
			t.Helper()
			for {
				data, err := events.Next()
				if err != nil {
					t.Fatalf("the stream (%s) ended before %s came: %v", response.Status, text, err)
				}
				if strings.Contains(string(data), text) {
					return
				}
			}
		}
		await(`"target":"denied.test"`)
		cannot(t, inside, "unheard-of.test")
		await(`"target":"unheard-of.test"`)
	})
	t.Run("endpoint of the sidecar", func(t *testing.T) {
		endpoint := s.Endpoint(t, id, 18080)
		token := endpoint.Headers["X-EGRESS-ACCESS-TOKEN"]
		if got := lives.Fetch(t, endpoint.URL+"/policy", "X-EGRESS-ACCESS-TOKEN",
			token); token == "" || got.Status != http.StatusOK {
			t.Errorf("GET %s/policy: %s", endpoint.URL, got)
		}
		if got := lives.Fetch(t, endpoint.URL+"/policy"); got.Status != http.StatusUnauthorized {
			t.Errorf("without the token: %s", got)
		}
		if strings.Contains(s.Log.Tail(10000), token) {
			t.Error("the log shows the token")
		}
		lives.WantProblem(t,
			lives.Fetch(t, s.URL+path+"/proxy/18080/policy", lives.KeyHeader, lives.AdminKey),
			http.StatusConflict, "CONFLICT", "egress sidecar")
	})
	t.Run("pause", func(t *testing.T) {
		s.Pause(t, id)
		s.policy(t, http.MethodPatch, id, `[{"action":"allow","target":"denied.test"}]`)
		s.Resume(t, id)
		gets(t, inside, "denied.test")
		s.policy(t, http.MethodDelete, id, `["denied.test"]`)
	})
	t.Run("the guard is killed", func(t *testing.T) {
		const news = "the egress guard died and was started again"
		events := s.StreamEvents(t, path+"/events")
		s.killGuard(t, id)
		lives.Eventually(t, "the status says so",
			func() bool { return strings.Contains(s.Get(t, id).Status.Message, news) })
		events.Until(func(e lives.StreamEvent) bool {
			return strings.Contains(
				lives.Value(e.Message), news)
		})
		gets(t, inside, "allowed.test")
		cannot(t, inside, "denied.test")
	})
	t.Run("a big policy", func(t *testing.T) {
		targets := make([]string, 4000)
		for i := range targets {
			targets[i] = fmt.Sprintf("%s-%d.example.com", strings.Repeat("x", 50), i)
		}
		big := s.Running(t, confined(append(targets, "allowed.test")...))
		gets(t, s.Enter(t, big), "allowed.test")
		cannot(t, s.Enter(t, big), "denied.test")
		s.Delete(t, big)
	})
	t.Run("no policy", func(t *testing.T) {
		free := s.Running(t, lives.Request(baseImage, "sleep", "1000"))
		gets(t, s.Enter(t, free), "denied.test")
		s.policy(t, http.MethodPut, free, `{"defaultAction":"deny"}`)
		cannot(t, s.Enter(t, free), "denied.test")
		s.Delete(t, free)
	})
	t.Run("the end", func(t *testing.T) {
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
		for _, container := range s.containers(t) {
			if container.Labels["sandbox.internal/id"] == id {
				t.Errorf("container %s is left", container.Name)
			}
		}
		lives.WantProblem(t, s.Send(t, http.MethodGet, path+"/network-policy", ""),
			http.StatusConflict, "CONFLICT", "Terminated")
	})
	t.Run("the sidecar is killed", func(t *testing.T) {
		id := s.Running(t, confined("allowed.test"))
		dockerCLI(t, "kill", s.sidecarOf(t, id).ID)
		status := s.Await(t, id, "Failed").Status
		if status.Reason != "NETWORK_ERROR" ||
			!strings.Contains(status.Message, "the egress sidecar ended") {
			t.Errorf("status: %+v", status)
		}
		lives.Eventually(t, "nothing of it is left", func() bool {
			for _, container := range s.containers(t) {
				if container.Labels["sandbox.internal/id"] == id {
					return false
				}
			}
			return true
		})
	})
}

// TestEgressSurvivesTheService: a service that is killed, and one that loses its database, find
// sidecars and policies again.
func TestEgressSurvivesTheService(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, lives.Plan{Program: true, Settings: egressSettings(o)})
	id := s.Running(t, confined("allowed.test"))
	s.policy(t, http.MethodPut, id,
		`{"defaultAction":"deny","egress":[{"action":"allow","target":"denied.test"}]}`)
	check := func(t *testing.T) {
		t.Helper()
		s.Await(t, id, "Running")
		inside := s.Enter(t, id)
		gets(t, inside, "denied.test")
		cannot(t, inside, "allowed.test")
		if got := s.policy(t, http.MethodGet, id, ""); len(got.Egress) != 1 ||
			got.Egress[0].Target != "denied.test" {
			t.Errorf("policy: %+v", got)
		}
	}
	check(t)
	during := s.Create(t, confined("allowed.test"))
	s.Kill()
	s.Boot(t)
	check(t)
	s.Await(t, during, "Running")
	cannot(t, s.Enter(t, during), "denied.test")

	s.Kill()
	if err := os.RemoveAll(s.Folder); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	check(t)
	s.Delete(t, id)
	s.Delete(t, during)
	s.Await(t, id, "Terminated")
	s.Await(t, during, "Terminated")
	if left := s.containers(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestEgressWithoutUpstream: the name servers of a sandbox are those of its network when it was
// made, although root in the sandbox writes others into the file that it shares with the guard.
func TestEgressWithoutUpstream(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	rogue := runOutside(t, "rogue", lives.NameServer, "allowed.test="+o.denied)
	s := start(t, lives.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	id := s.Running(t, confined("allowed.test"))
	inside := s.Enter(t, id)
	inside.Want(t, "echo nameserver "+rogue+" > /etc/resolv.conf && cat /etc/resolv.conf",
		"nameserver "+rogue+"\n")
	s.killGuard(t, id)
	lives.Eventually(t, "the guard is started again",
		func() bool { return strings.Contains(s.Get(t, id).Status.Message, "restarts so far: 1") })
	if got := inside.Run(t, "getent ahostsv4 allowed.test"); strings.Contains(got.Stdout,
		o.denied) {
		t.Errorf("the name server that root has written into resolv.conf is asked: %+v", got)
	}
	cannot(t, inside, "allowed.test")
	cannot(t, inside, o.denied)
}

// TestEgressRefusals: what cannot be had is refused, as without an image.
func TestEgressRefusals(t *testing.T) {
	t.Parallel()
	plain := start(t, lives.Plan{})
	id := plain.Running(t, idle())
	for method, body := range map[string]string{"GET": "", "PUT": "{}",
		"PATCH": `[{"action":"deny","target":"a.example"}]`, "DELETE": `["a.example"]`} {
		lives.WantProblem(t,
			plain.Send(t, method, "/v1/sandboxes/"+id+"/network-policy", body, "Content-Type",
				"application/json"), http.StatusConflict, "CONFLICT", "has no egress sidecar")
	}
	for _, path := range []string{"/network-decisions", "/network-decisions/proposal"} {
		lives.WantProblem(t, plain.Send(t, http.MethodGet, "/v1/sandboxes/"+id+path, ""),
			http.StatusConflict, "CONFLICT", "has no egress sidecar")
	}
	s := start(t, lives.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q", egressImage)})
	body, err := json.Marshal(confined("*.*.example"))
	if err != nil {
		t.Fatal(err)
	}
	lives.WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", string(body)),
		http.StatusBadRequest, "INVALID_REQUEST_BODY", "networkPolicy.egress[0].target")
}
