package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// spares keeps that many networks ahead.
func spares(count int) string { return fmt.Sprintf("[docker]\nspare_networks = %d\n", count) }

// spareGauge is what the service reports of networks that were made ahead.
var spareGauge = regexp.MustCompile(`(?m)^sandbox_spare_networks (\d+)$`)

// awaitSpares waits until at least that many networks are free, and returns the ids that networks
// were made with, taken ones included.
func (s *service) awaitSpares(t *testing.T, count int) (ids []string) {
	t.Helper()
	wait.Until(t, "networks are made ahead", func() bool {
		found := spareGauge.FindStringSubmatch(conformance.Fetch(t, s.URL+"/metrics", conformance.KeyHeader, conformance.AdminKey).Body)
		if found == nil {
			return false
		}
		free, err := strconv.Atoi(found[1])
		return err == nil && free >= count
	})
	for _, container := range s.containers(t) {
		if container.Labels["sandbox.internal/sidecar"] != "" {
			ids = append(ids, container.Labels["sandbox.internal/id"])
		}
	}
	return ids
}

// leavesNothing stops the service, which has no sandbox any more, and demands that the engine has
// nothing of it.
func (s *service) leavesNothing(t *testing.T) {
	t.Helper()
	s.Halt(t)
	for _, container := range s.containers(t) {
		t.Errorf("the service left %s (%s)", container.Name, container.Status)
	}
}

// TestSpareNetwork: a sandbox in a network that was made ahead, from its create to its end, over a
// kill of the service.
func TestSpareNetwork(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true, Settings: spares(2)})
	made := s.awaitSpares(t, 2)
	id := s.Running(t, conformance.Request(baseImage, "sleep", "1000"))
	if !slices.Contains(made, id) {
		t.Fatalf("sandbox %s has none of the networks %v", id, made)
	}
	inside := s.Enter(t, id)
	t.Run("the sandbox sees nothing of what owns its network", func(t *testing.T) {
		sockets := inside.Run(t, "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 | grep -v local_address").Stdout
		const listening, daemon = " 0A ", ":AEE4 "
		for line := range strings.Lines(sockets) {
			if !strings.Contains(line, daemon) {
				t.Errorf("a socket that is not execd's: %s", line)
			}
		}
		if !strings.Contains(sockets, listening) {
			t.Errorf("nothing listens: %q", sockets)
		}
		if got := inside.Run(t, "cat /proc/net/unix").Stdout; strings.Contains(got, "@") {
			t.Errorf("abstract sockets: %s", got)
		}
		if got := inside.Run(t, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").Stdout; strings.Contains(got, "hold") {
			t.Errorf("processes: %s", got)
		}
	})
	t.Run("what owns the network can do nothing", func(t *testing.T) {
		got := dockerCLI(t, "inspect", "-f", "{{.HostConfig.CapAdd}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}} {{.HostConfig.PidMode}}{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{.Mounts}}",
			"sandbox-"+id+"-network")
		if want := regexp.MustCompile(`^(\[\]|<no value>) \[ALL\] \[no-new-privileges seccomp=\{.*\}\] \d+ \d+ \[\]\s*$`); !want.MatchString(got) {
			t.Errorf("the owner of the network is made with %q", got)
		}
	})
	s.Pause(t, id)
	s.Resume(t, id)
	before := s.Endpoint(t, id, conformance.DaemonPort)
	free := s.awaitSpares(t, 2)
	s.Kill()
	s.Boot(t)
	if got := s.Await(t, id, "Running"); got.ID != id {
		t.Errorf("after a kill: %+v", got)
	}
	if after := s.Endpoint(t, id, conformance.DaemonPort); after.URL != before.URL {
		t.Errorf("the endpoint was %v and is %v", before.URL, after.URL)
	}
	inside.Want(t, "echo still there", "still there\n")
	for _, spare := range s.awaitSpares(t, 2) {
		if spare != id && slices.Contains(free, spare) {
			t.Errorf("the killed service's network %s is still there", spare)
		}
	}
	s.Delete(t, id)
	s.Gone(t, id)
	lost := s.Running(t, idle())
	dockerCLI(t, "kill", "sandbox-"+lost+"-network")
	if got := s.Await(t, lost, "Failed").Status; got.Reason != "NETWORK_ERROR" {
		t.Errorf("without its network: %s: %s", got.Reason, got.Message)
	}
	s.Gone(t, lost)
	s.leavesNothing(t)
}

// TestEgressOfASpare: the firewall of a sidecar that was made ahead holds as that of another.
func TestEgressOfASpare(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, conformance.Plan{Settings: spares(1) + o.EgressSettings(egressImage)})
	made := s.awaitSpares(t, 1)
	id := s.Running(t, s.Confined("allowed.test"))
	if !slices.Contains(made, id) {
		t.Fatalf("sandbox %s has none of the networks %v", id, made)
	}
	inside := s.Enter(t, id)
	conformance.Reaches(t, inside, "allowed.test")
	conformance.ReachesNot(t, inside, "denied.test")
	conformance.ReachesNot(t, inside, o.Denied)
	conformance.Egress(t, s.Service, id, o, s.sidecars())
	s.awaitSpares(t, 1)
	open := s.Running(t, idle())
	if got := s.Policy(t, http.MethodGet, open, ""); len(got.Egress) != 0 || conformance.Value(got.DefaultAction) == "deny" {
		t.Errorf("without a policy: %+v", got)
	}
	s.Delete(t, open)
	s.Gone(t, open)
	s.leavesNothing(t)
}

// TestKillsWhileNetworksAreMade: whenever the service is killed, the next one leaves nothing when
// it stops.
func TestKillsWhileNetworksAreMade(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true, Settings: spares(3)})
	numbers := random.New(t)
	for range 6 {
		s.awaitSpares(t, 1+numbers.IntN(3))
		s.Kill()
		// Before or while its first ones are made.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Duration(numbers.IntN(1500))*time.Millisecond)
		s.bootUntil(ctx, t)
		cancel()
		s.Boot(t)
	}
	id := s.Running(t, idle())
	s.Delete(t, id)
	s.Gone(t, id)
	s.leavesNothing(t)
}
