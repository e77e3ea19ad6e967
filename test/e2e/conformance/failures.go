package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testFailures(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	for name, c := range map[string]struct {
		request       lifecycle.CreateSandboxRequest
		state, reason string
		words         []string // of the message
	}{
		"unknown image": {Request("127.0.0.1:1/no/such:image", "sleep", "1"), "Failed",
			"IMAGE_PULL_ERROR", []string{"127.0.0.1:1", "connection refused"}},
		"no image reference": {Request("UPPER/case", "sleep", "1"), "Failed", "IMAGE_PULL_ERROR",
			[]string{"UPPER/case"}},
		"entrypoint not found": {Request(s.Images.Busybox, "no-such-program"), "Failed",
			"ENTRYPOINT_EXITED",
			[]string{"exit code 127", `"no-such-program"`, "not found in PATH"}},
		"entrypoint no program": {
			Request(s.Images.Busybox, "/etc/passwd"), "Failed", "ENTRYPOINT_EXITED",
			[]string{"exit code 126", "permission denied"},
		},
		"exit 0": {Request(s.Images.Busybox, "true"), "Terminated", "ENTRYPOINT_EXITED",
			[]string{"exit code 0"}},
		"exit 0 later": {Request(s.Images.Busybox, "sleep", "1"), "Terminated",
			"ENTRYPOINT_EXITED", []string{"exit code 0"}},
		"exit 3": {Request(s.Images.Busybox, "sh", "-c", "echo the last words; exit 3"),
			"Failed", "ENTRYPOINT_EXITED", []string{"exit code 3", "the last words"}},
		"exit 4 later": {Request(s.Images.Busybox, "sh", "-c",
			"sleep 1; echo farewell >&2; exit 4"), "Failed", "ENTRYPOINT_EXITED",
			[]string{"exit code 4", "farewell"}},
		"out of memory": {Limited(Request(s.Images.Base, "python3", "-c",
			"x = bytearray(512 << 20)"), "1", "64Mi"), "Failed", "OOM_KILLED", []string{"memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := s.Create(t, c.request)
			status := s.Await(t, id, c.state).Status
			if status.Reason != c.reason {
				t.Errorf("the reason is %s (%s), want %s", status.Reason, status.Message, c.reason)
			}
			Contains(t, status.Message, c.words...)
			WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/80", ""), 409,
				"CONFLICT", c.state)
		})
	}
}

// testNoRoom: a sandbox that asks for more than there is ends with the reason, and none runs
// without what it asked for.
func testNoRoom(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Provision: noRoom})
	t.Run("row lifecycle/codes/RESOURCE_LIMIT_EXCEEDED", func(t *testing.T) {
		gpu := s.Idle()
		gpus := "1"
		gpu.ResourceLimits.Gpu = &gpus
		created := map[string]string{
			"gpu":    s.Create(t, gpu),
			"cpu":    s.Create(t, Limited(s.Idle(), "99", "64Mi")),
			"memory": s.Create(t, Limited(s.Idle(), "1", "900Ti")),
		}
		for resource, id := range created {
			status := s.Await(t, id, "Failed").Status
			if status.Reason != "RESOURCE_LIMIT_EXCEEDED" {
				t.Errorf("too much %s: the reason is %s (%s)", resource, status.Reason, status.Message)
			}
			Contains(t, strings.ToLower(status.Message), resource)
		}
	})
}

// Limited returns a request with other limits.
func Limited(r lifecycle.CreateSandboxRequest, cpu, memory string) lifecycle.CreateSandboxRequest {
	r.ResourceLimits = &lifecycle.ResourceLimits{CPU: &cpu, Memory: &memory}
	return r
}

func testOutOfMemoryCommandLeavesTheSandboxRunning(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := s.Running(t, Limited(Request(s.Images.Base, "sleep", "1000"), "1", "64Mi"))
	inside := s.Enter(t, id)
	if b.OwnKernel {
		inside.Run(t, `(sleep 1; python3 -c 'x = bytearray(512 << 20)') </dev/null >/dev/null 2>&1 &`)
		if got := s.Await(t, id, "Failed").Status; got.Reason != "OOM_KILLED" {
			t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
		}
		return
	}
	const hungry = `python3 -c 'x = bytearray(512 << 20)'`
	// The shell becomes the program, or waits for it.
	for _, command := range []string{hungry, hungry + "; exit $?"} {
		if got := inside.Run(t, command); got.Code != 137 || got.Reason != "OOM_KILLED" {
			t.Errorf("%q ended with %+v, want exit code 137 and OOM_KILLED", command, got)
		}
	}
	if got := inside.Run(t, "kill -9 $$"); got.Code != 137 || got.Reason != "" {
		t.Errorf("a command that kills itself ended with %+v, want exit code 137 and no reason", got)
	}
	list, err := inside.Client.ListCommandsWithResponse(t.Context(), nil)
	if err != nil || list.JSON200 == nil || len(*list.JSON200) != 3 {
		t.Fatalf("the list of commands: %v, %s", err, list.Body)
	}
	for i, want := range []string{"OOM_KILLED", "OOM_KILLED", ""} {
		listed := (*list.JSON200)[i]
		if Value(listed.Reason) != want {
			t.Errorf("the list has %+v, want the reason %q", listed, want)
		}
		status, err := inside.Client.GetCommandStatusWithResponse(t.Context(), listed.ID)
		if err != nil || status.JSON200 == nil || Value(status.JSON200.Reason) != want {
			t.Errorf("the status: %v, %s, want the reason %q", err, status.Body, want)
		}
	}
	inside.Want(t, "echo still here", "still here\n")
	if got := s.Get(t, id).Status.State; got != "Running" {
		t.Errorf("the sandbox is %s", got)
	}
}

// testSharedMemory: /dev/shm holds half of the memory, where browsers and data loaders need more
// than the 64 MiB of container engines.
func testSharedMemory(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	for memory, kibibytes := range map[string]int{"300Mi": 150 << 10, "64Mi": 64 << 10} {
		inside := s.Enter(t, s.Running(t, Limited(s.Idle(), "1", memory)))
		inside.Want(t, "df -k /dev/shm | tail -n 1 | awk '{ print $2 }'", fmt.Sprintln(kibibytes))
		if memory == "300Mi" {
			inside.Want(t, "dd if=/dev/zero of=/dev/shm/x bs=1M count=100 2>/dev/null && echo written", "written\n")
		}
		inside.Want(t, "touch /dev/shm/y && stat -c %a /dev/shm", "1777\n")
	}
}

// testManySmallProcessesLeaveTheDaemonRunning: the kernel ends none of ours when the memory is used
// up by processes each of which is smaller.
func testManySmallProcessesLeaveTheDaemonRunning(t *testing.T, b Backend) {
	if b.OwnKernel {
		return // it ends with the sandbox, see testOutOfMemoryCommandLeavesTheSandboxRunning
	}
	s := Start(t, b, Plan{})
	id := s.Running(t, Limited(Request(s.Images.Base, "sleep", "1000"), "1", "64Mi"))
	inside := s.Enter(t, id)
	const started = `for p in /proc/[0-9]*; do test "$(cat $p/comm)" = execd && cut -d" " -f22 $p/stat; done; true`
	before := inside.Run(t, started)
	if before.Code != 0 || before.Stdout == "" {
		t.Fatalf("when the daemon was started: %+v", before)
	}
	got := inside.Run(t, `
small() { x=$(head -c 3000000 /dev/zero | tr '\000' x); sleep 2; echo survived; }
for i in $(seq 40); do small & done
wait`)
	if strings.Count(got.Stdout, "survived") == 40 {
		t.Errorf("40 processes of 3 MB survived in 64 MiB: %+v", got)
	}
	// Those that survived may live on when their shell was ended, and take what a command needs.
	wait.Until(t, "a command finds the same daemon", func() bool {
		after := inside.Run(t, started)
		return after.Code == 0 && after.Stdout == before.Stdout
	})
	if got := s.Get(t, id).Status.State; got != "Running" {
		t.Errorf("the sandbox is %s", got)
	}
}

// testRemovedByAnotherProgram: a sandbox whose engine has lost it has failed, and says why.
func testRemovedByAnotherProgram(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	running, paused := s.Running(t, s.Idle()), s.Running(t, s.Idle())
	s.Pause(t, paused)
	for _, id := range []string{running, paused} {
		b.Destroy(t, s.Instance, id)
		if got := s.Await(t, id, "Failed").Status; got.Reason != "REMOVED_EXTERNALLY" {
			t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
		}
	}
}

// testFailedRecordIsForgotten: the retention of sandboxes that failed while Pending is a matter of
// its own.
func testFailedRecordIsForgotten(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Env: map[string]string{"PENDING_FAILURE_TTL": "1"}})
	t.Run("row lifecycle/environment/PENDING_FAILURE_TTL", func(t *testing.T) {
		id := s.Create(t, Request("127.0.0.1:1/no/such:image", "sleep", "1000"))
		wait.Until(t, "the record of a sandbox that failed while Pending is removed", func() bool {
			return s.Send(t, http.MethodGet, "/v1/sandboxes/"+id, "").Status == http.StatusNotFound
		})
	})
}
