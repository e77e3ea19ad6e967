package local_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/test/e2e/conformance"
)

// TestConformance runs the table of what every backend has in common.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, onLocal(newMachines()))
}

func TestIngress(t *testing.T) {
	t.Parallel()
	conformance.Ingress(t, onLocal(newMachines()))
}

// TestEveryRuntime runs a life with each of the OCI runtimes that are installed.
func TestEveryRuntime(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(runtime); err != nil {
				t.Fatal(err)
			}
			s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{
				Settings: fmt.Sprintf("[[runtime.classes]]\nname = \"other\"\nhandler = %q\n", runtime),
			})
			request, class := s.Idle(), "other"
			request.RuntimeClass = &class
			id := s.Running(t, request)
			s.Enter(t, id).Want(t, "echo hello", "hello\n")
			s.Act(t, http.MethodPost, id+"/pause", http.StatusAccepted)
			s.Await(t, id, "Paused")
			s.Act(t, http.MethodPost, id+"/resume", http.StatusAccepted)
			s.Await(t, id, "Running")
			s.Enter(t, id).Want(t, "echo hello again", "hello again\n")
		})
	}
}

// testKilledByAnotherProgram: a sandbox whose first process was killed from outside has failed, and
// says with which exit code. One that is paused may have to be resumed for that: with cgroup v1 a
// frozen process does not take even this signal.
func testKilledByAnotherProgram(t *testing.T, b conformance.Backend, on *machines) {
	s := conformance.Start(t, b, conformance.Plan{})
	running, paused := s.Running(t, s.Idle()), s.Running(t, s.Idle())
	s.Act(t, http.MethodPost, paused+"/pause", http.StatusAccepted)
	s.Await(t, paused, "Paused")
	for _, id := range []string{running, paused} {
		for _, r := range on.of(s.Instance).Records(t, id) {
			if err := unix.Kill(r.Run.Process.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if id == paused {
			s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/resume", "") // refused where it has failed already
		}
		if got := s.Await(t, id, "Failed").Status; got.Reason != "ENTRYPOINT_EXITED" || !strings.Contains(got.Message, "137") {
			t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
		}
	}
}

const sameStore = "the records are kept as on Docker, where the tests take them away"

// onLocal is the host backend with the service's own engine, for the table of lives.
func onLocal(on *machines) conformance.Backend {
	b := on.Backend()
	b.Instead = map[string]conformance.Replacement{
		"RemovedByAnotherProgram": {
			Because: "no other program has a way to remove a container of this engine; it can kill its processes",
			Test:    func(t *testing.T, b conformance.Backend) { testKilledByAnotherProgram(t, b, on) },
		},
		"EventsSurviveKills": {
			Because: "here the ids of events have no gaps",
			Test: func(t *testing.T, b conformance.Backend) {
				conformance.EventsSurviveKills(t, b, func(last, next int64) bool { return next == last+1 })
			},
		},
	}
	b.Unprovoked = map[string]string{
		"getSandbox 500":    "it reads memory alone",
		"listSandboxes 500": "it reads memory alone",
		"getEndpoint 500":   "it reads memory alone",
		"getActivity 500":   "it reads memory alone",
		"watchActivity 500": "it reads memory alone",
		"getLogs 503":       "the engine is part of the service",
		"getLogs 409":       "no other program has a way to remove a container of this engine",

		"streamHostLoad 501": "the engine is on the service's machine",

		"createSandbox 500":       sameStore,
		"deleteSandbox 500":       sameStore,
		"pauseSandbox 500":        sameStore,
		"resumeSandbox 500":       sameStore,
		"renewExpiration 500":     sameStore,
		"updateMetadata 500":      sameStore,
		"getLogs 500":             sameStore,
		"streamEvents 500":        sameStore,
		"streamSandboxEvents 500": sameStore,

		"getNetworkPolicy 500":     "the sidecar would have to answer nonsense",
		"listNetworkDecisions 500": "the sidecar would have to answer nonsense",
		"proposeNetworkPolicy 500": "the sidecar would have to answer nonsense",
	}
	return b
}
