package e2e_test

import (
	"net/http"
	"testing"

	"sandbox.internal/gen/lifecycle"
)

func TestFailures(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	for name, c := range map[string]struct {
		request       lifecycle.CreateSandboxRequest
		state, reason string
		words         []string // of the message
	}{
		"unknown image":        {request("127.0.0.1:1/no/such:image", "sleep", "1"), "Failed", "IMAGE_PULL_ERROR", []string{"127.0.0.1:1", "connection refused"}},
		"no image reference":   {request("UPPER/case", "sleep", "1"), "Failed", "IMAGE_PULL_ERROR", []string{"UPPER/case"}},
		"entrypoint not found": {request(busyboxImage, "no-such-program"), "Failed", "ENTRYPOINT_EXITED", []string{"exit code 127", "last lines of its log", `"no-such-program"`, "not found in PATH"}},
		"entrypoint no program": {
			request(busyboxImage, "/etc/passwd"), "Failed", "ENTRYPOINT_EXITED", []string{"exit code 126", "permission denied"},
		},
		"exit 0":          {request(busyboxImage, "true"), "Terminated", "ENTRYPOINT_EXITED", []string{"exit code 0"}},
		"exit 0 later":    {request(busyboxImage, "sleep", "1"), "Terminated", "ENTRYPOINT_EXITED", []string{"exit code 0"}},
		"exit 3":          {request(busyboxImage, "sh", "-c", "echo the last words; exit 3"), "Failed", "ENTRYPOINT_EXITED", []string{"exit code 3", "the last words"}},
		"exit 4 later":    {request(busyboxImage, "sh", "-c", "sleep 1; echo farewell >&2; exit 4"), "Failed", "ENTRYPOINT_EXITED", []string{"exit code 4", "farewell"}},
		"out of memory":   {limited(request(baseImage, "python3", "-c", "x = bytearray(512 << 20)"), "1", "64Mi"), "Failed", "OOM_KILLED", []string{"memory"}},
		"too many cpus":   {limited(idle(), "99", "64Mi"), "Failed", "RESOURCE_LIMIT_EXCEEDED", []string{"resourceLimits.cpu", "99"}},
		"too much memory": {limited(idle(), "1", "900Ti"), "Failed", "RESOURCE_LIMIT_EXCEEDED", []string{"resourceLimits.memory", "900Ti"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := s.create(t, c.request)
			status := s.await(t, id, c.state).Status
			if status.Reason != c.reason {
				t.Errorf("the reason is %s (%s), want %s", status.Reason, status.Message, c.reason)
			}
			contains(t, status.Message, c.words...)
			wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/80", ""), 409, "CONFLICT", c.state)
		})
	}
}

func limited(r lifecycle.CreateSandboxRequest, cpu, memory string) lifecycle.CreateSandboxRequest {
	r.ResourceLimits = lifecycle.ResourceLimits{CPU: &cpu, Memory: &memory}
	return r
}

func TestOutOfMemoryCommandLeavesTheSandboxRunning(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := s.running(t, limited(request(baseImage, "sleep", "1000"), "1", "64Mi"))
	inside := s.enter(t, id)
	if got := inside.run(t, `python3 -c 'x = bytearray(512 << 20)'`); got.code != 137 {
		t.Errorf("the command ended with %+v, want exit code 137", got)
	}
	inside.want(t, "echo still here", "still here\n")
	if got := s.get(t, id).Status.State; got != "Running" {
		t.Errorf("the sandbox is %s", got)
	}
}

func TestContainerTouchedBySomebodyElse(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	t.Run("removed", func(t *testing.T) {
		t.Parallel()
		for _, paused := range []bool{false, true} {
			id := s.running(t, idle())
			if paused {
				s.pause(t, id)
			}
			if err := s.engine.Remove(t.Context(), "sandbox-"+id); err != nil {
				t.Fatal(err)
			}
			if got := s.await(t, id, "Failed").Status; got.Reason != "REMOVED_EXTERNALLY" {
				t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
			}
		}
	})
	t.Run("paused and resumed", func(t *testing.T) {
		t.Parallel()
		id := s.running(t, idle())
		if err := s.engine.Freeze(t.Context(), "sandbox-"+id); err != nil {
			t.Fatal(err)
		}
		s.await(t, id, "Paused")
		s.resume(t, id)
		s.await(t, id, "Running")
	})
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		id := s.running(t, idle())
		if err := s.engine.Stop(t.Context(), "sandbox-"+id, 0); err != nil {
			t.Fatal(err)
		}
		if got := s.await(t, id, "Failed").Status; got.Reason != "ENTRYPOINT_EXITED" {
			t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
		}
	})
}
