package conformance

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sse"
)

// Outside is the world around sandboxes with an egress sidecar: the addresses of two web servers,
// which answer every request with their names, "allowed" and "denied", and of a name server that
// has them as allowed.test and denied.test.
type Outside struct{ Allowed, Denied, NameServer string }

// EgressSettings is the section of a configuration for sidecars of the image in that world.
func (o Outside) EgressSettings(image string) string {
	return fmt.Sprintf("[egress]\nimage = %q\nupstream = [%q]\n", image, o.NameServer)
}

// Sidecars are what a backend's own tools can do to the egress sidecar of a sandbox.
type Sidecars struct {
	KillDaemon func(t *testing.T, id string) // and not process 1 of the sidecar
	Kill       func(t *testing.T, id string)
}

// Confined asks for a sandbox with a policy that allows nothing but those targets.
func (c *Client) Confined(targets ...string) lifecycle.CreateSandboxRequest {
	r := Request(c.Images.Base, "sleep", "1000")
	deny := lifecycle.NetworkActionDeny
	r.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: &deny}
	for _, target := range targets {
		r.NetworkPolicy.Egress = append(r.NetworkPolicy.Egress,
			lifecycle.EgressRule{Action: lifecycle.NetworkActionAllow, Target: target})
	}
	return r
}

// Reaches demands that a request from inside the sandbox for a name of [Outside] is answered.
func Reaches(t *testing.T, b *Box, host string) {
	t.Helper()
	name := strings.TrimSuffix(host, ".test")
	if got := b.Run(t, Fetching(host)); got.Stdout != name {
		t.Errorf("the sandbox does not reach %s: %+v", host, got)
	}
}

// ReachesNot demands that such a request, or one for an address, fails.
func ReachesNot(t *testing.T, b *Box, host string) {
	t.Helper()
	if got := b.Run(t, Fetching(host)); got.Code == 0 || got.Stdout != "" {
		t.Errorf("the sandbox reaches %s: %+v", host, got)
	}
}

// Fetching is the command that sends such a request.
func Fetching(host string) string {
	return "curl --silent --noproxy '*' --connect-timeout 10 --max-time 20 http://" + host + "/"
}

// Policy sends a request about the network policy of a sandbox, and returns the policy afterwards.
func (c *Client) Policy(t *testing.T, method, id, body string) lifecycle.NetworkPolicy {
	t.Helper()
	got := c.Send(t, method, "/v1/sandboxes/"+id+"/network-policy", body, "Content-Type",
		"application/json")
	if got.Status != http.StatusOK {
		t.Fatalf("%s network-policy %s: %s", method, body, got)
	}
	policy, err := Decode[lifecycle.NetworkPolicy](got)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// Egress shows what a client may rely on of network policies, with the real sidecar: id is a
// Running sandbox that [Client.Confined] asked for with allowed.test alone. It is deleted.
func Egress(t *testing.T, s *Service, id string, o Outside, sidecars Sidecars) {
	t.Helper()
	inside := s.Enter(t, id)
	path := "/v1/sandboxes/" + id
	t.Run("changes", func(t *testing.T) {
		if got := s.Policy(t, http.MethodGet, id, ""); Value(got.DefaultAction) != "deny" ||
			len(got.Egress) != 1 {
			t.Errorf("policy: %+v", got)
		}
		events := s.StreamEvents(t, path+"/events")
		s.Policy(t, http.MethodPatch, id, `[{"action":"allow","target":"denied.test"}]`)
		events.Until(func(e StreamEvent) bool {
			return e.Type == "networkPolicy" &&
				len(e.NetworkPolicy.Egress) == 2
		})
		Reaches(t, inside, "denied.test")
		if got := s.Policy(t, http.MethodDelete, id, `["denied.test"]`); len(got.Egress) != 1 {
			t.Errorf("policy after DELETE: %+v", got)
		}
		ReachesNot(t, inside, "denied.test")
		Reaches(t, inside, "allowed.test")
		s.Policy(t, http.MethodPut, id, `{}`)
		Reaches(t, inside, "denied.test")
		WantProblem(t,
			s.Send(t, http.MethodPut, path+"/network-policy",
				`{"egress":[{"action":"deny","target":"no target"}]}`),
			http.StatusBadRequest, "INVALID_REQUEST_BODY", "egress[0].target")
		s.Policy(t, http.MethodPut, id,
			`{"defaultAction":"deny","egress":[{"action":"allow","target":"allowed.test"}]}`)
	})
	t.Run("row lifecycle/networkPolicy/defaultAction: allow and deny", func(t *testing.T) {
		s.Policy(t, http.MethodPut, id,
			`{"defaultAction":"allow","egress":[{"action":"deny","target":"denied.test"}]}`)
		Reaches(t, inside, "allowed.test")
		ReachesNot(t, inside, "denied.test")
		s.Policy(t, http.MethodPut, id, `{"defaultAction":"deny"}`)
		ReachesNot(t, inside, "allowed.test")
	})
	t.Run("row lifecycle/networkPolicy/egress: a domain, a wildcard domain and a range",
		func(t *testing.T) {
			allow := func(target string) {
				t.Helper()
				s.Policy(t, http.MethodPut, id, fmt.Sprintf(
					`{"defaultAction":"deny","egress":[{"action":"allow","target":%q}]}`, target))
			}
			allow("*.test")
			Reaches(t, inside, "allowed.test")
			Reaches(t, inside, "denied.test")
			allow(o.Allowed + "/32")
			if got := inside.Run(t, Fetching(o.Allowed)); got.Stdout != "allowed" {
				t.Errorf("the sandbox does not reach %s: %+v", o.Allowed, got)
			}
			ReachesNot(t, inside, o.Denied)
			ReachesNot(t, inside, "denied.test")
			allow("allowed.test")
			Reaches(t, inside, "allowed.test")
			ReachesNot(t, inside, "denied.test")
			ReachesNot(t, inside, o.Denied)
		})
	t.Run("decisions", func(t *testing.T) {
		ReachesNot(t, inside, "denied.test")
		wait.Until(t, "the refusal is among the decisions", func() bool {
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
		ReachesNot(t, inside, "not-asked-before.test")
		await(`"target":"not-asked-before.test"`)
	})
	t.Run("endpoint of the sidecar", func(t *testing.T) {
		endpoint := s.Endpoint(t, id, 18080)
		token := endpoint.Headers["X-EGRESS-ACCESS-TOKEN"]
		if got := Fetch(t, endpoint.URL+"/policy", "X-EGRESS-ACCESS-TOKEN",
			token); token == "" || got.Status != http.StatusOK {
			t.Errorf("GET %s/policy: %s", endpoint.URL, got)
		}
		if got := Fetch(t, endpoint.URL+"/policy"); got.Status != http.StatusUnauthorized {
			t.Errorf("without the token: %s", got)
		}
		if strings.Contains(s.Log.Tail(10000), token) {
			t.Error("the log shows the token")
		}
		WantProblem(t,
			Fetch(t, s.URL+path+"/proxy/18080/policy", KeyHeader, AdminKey),
			http.StatusConflict, "CONFLICT", "egress sidecar")
	})
	t.Run("pause", func(t *testing.T) {
		s.Pause(t, id)
		s.Policy(t, http.MethodPatch, id, `[{"action":"allow","target":"denied.test"}]`)
		s.Resume(t, id)
		Reaches(t, inside, "denied.test")
		s.Policy(t, http.MethodDelete, id, `["denied.test"]`)
	})
	t.Run("the egress daemon is killed", func(t *testing.T) {
		const news = "the egress daemon died and was started again"
		events := s.StreamEvents(t, path+"/events")
		sidecars.KillDaemon(t, id)
		wait.Until(t, "the status says so",
			func() bool { return strings.Contains(s.Get(t, id).Status.Message, news) })
		events.Until(func(e StreamEvent) bool {
			return strings.Contains(
				Value(e.Message), news)
		})
		Reaches(t, inside, "allowed.test")
		ReachesNot(t, inside, "denied.test")
	})
	t.Run("a big policy", func(t *testing.T) {
		targets := make([]string, 4000)
		for i := range targets {
			targets[i] = fmt.Sprintf("%s-%d.example.com", strings.Repeat("x", 50), i)
		}
		big := s.Running(t, s.Confined(append(targets, "allowed.test")...))
		Reaches(t, s.Enter(t, big), "allowed.test")
		ReachesNot(t, s.Enter(t, big), "denied.test")
		s.Delete(t, big)
	})
	t.Run("no policy", func(t *testing.T) {
		free := s.Running(t, Request(s.Images.Base, "sleep", "1000"))
		Reaches(t, s.Enter(t, free), "denied.test")
		s.Policy(t, http.MethodPut, free, `{"defaultAction":"deny"}`)
		ReachesNot(t, s.Enter(t, free), "denied.test")
		s.Delete(t, free)
	})
	t.Run("the end", func(t *testing.T) {
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
		s.Gone(t, id)
		WantProblem(t, s.Send(t, http.MethodGet, path+"/network-policy", ""),
			http.StatusConflict, "CONFLICT", "Terminated")
	})
	t.Run("the sidecar is killed", func(t *testing.T) {
		id := s.Running(t, s.Confined("allowed.test"))
		sidecars.Kill(t, id)
		status := s.Await(t, id, "Failed").Status
		if status.Reason != "NETWORK_ERROR" ||
			!strings.Contains(status.Message, "the egress sidecar ended") {
			t.Errorf("status: %+v", status)
		}
		s.Gone(t, id)
	})
}

// EgressSurvivesTheService: a service that is killed, and one that loses its database, find
// sidecars and policies again. The service is a [Plan].Program with the settings of an [Outside].
func EgressSurvivesTheService(t *testing.T, s *Service) {
	t.Helper()
	id := s.Running(t, s.Confined("allowed.test"))
	s.Policy(t, http.MethodPut, id,
		`{"defaultAction":"deny","egress":[{"action":"allow","target":"denied.test"}]}`)
	check := func(t *testing.T) {
		t.Helper()
		s.Await(t, id, "Running")
		inside := s.Enter(t, id)
		Reaches(t, inside, "denied.test")
		ReachesNot(t, inside, "allowed.test")
		if got := s.Policy(t, http.MethodGet, id, ""); len(got.Egress) != 1 ||
			got.Egress[0].Target != "denied.test" {
			t.Errorf("policy: %+v", got)
		}
	}
	check(t)
	during := s.Create(t, s.Confined("allowed.test"))
	s.Kill()
	s.Boot(t)
	check(t)
	s.Await(t, during, "Running")
	ReachesNot(t, s.Enter(t, during), "denied.test")

	s.Kill()
	if err := os.RemoveAll(s.Directory); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	check(t)
	s.Delete(t, id)
	s.Delete(t, during)
	s.Await(t, id, "Terminated")
	s.Await(t, during, "Terminated")
	s.Gone(t, id)
	s.Gone(t, during)
}
