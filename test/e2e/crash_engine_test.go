package e2e_test

import (
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestEngineKilled kills the engine under a service with sandboxes in every state, makes every
// request while it is down, and starts it again. Containers survive that or not: the states must be
// those of the containers.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		signal   syscall.Signal
		survives bool
	}{
		"live restore, killed":       {[]string{"--live-restore"}, syscall.SIGKILL, true},
		"live restore, stopped":      {[]string{"--live-restore"}, syscall.SIGTERM, true},
		"without live restore":       {nil, syscall.SIGTERM, false},
		"without live restore, kill": {nil, syscall.SIGKILL, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, c.args...)
			testEngineKilled(t, e, c.signal, c.survives)
		})
	}
}

func testEngineKilled(t *testing.T, e *privateEngine, signal syscall.Signal, survives bool) {
	s := start(t, conformance.Plan{Host: e.published, Env: map[string]string{"DOCKER_HOST": e.host()}})
	images, open := startSlowRegistry(t, "")
	slow := conformance.Request(images.push(t, "engine/scratch",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")), "/forever")

	running, paused, pausing, doomed := s.Running(t, idle()), s.Running(t, idle()),
		s.Running(t, idle()), s.Running(t, idle())
	s.Enter(t, running).Want(t, "echo kept > /tmp/note", "")
	s.Pause(t, paused)
	pulling := s.Create(t, slow)
	wait.Until(t, "the pull has begun",
		func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	var starting []string
	for range 3 { // somewhere in their start when the engine is killed
		starting = append(starting, s.Create(t, idle()))
	}
	e.end(t, signal)
	if e.listens() {
		t.Fatal("the engine still runs")
	}

	// Everything is accepted and waits.
	accepted := s.Create(t, idle())
	wait.Until(t, "the new sandbox waits for the engine", func() bool {
		status := s.Get(t, accepted).Status
		return status.State == "Pending" && status.Reason == "ENGINE_UNAVAILABLE" &&
			strings.Contains(status.Message, "waiting for the container engine")
	})
	// An engine that gets SIGTERM ends its containers while its API may still answer: then the
	// service has already recorded that they ended.
	ended := func(id string) bool {
		status := s.Get(t, id).Status
		return !survives && status.State == "Failed" && status.Reason == "ENTRYPOINT_EXITED"
	}
	if !ended(pausing) {
		s.Act(t, http.MethodPost, pausing+"/pause", http.StatusAccepted)
	}
	if !ended(doomed) {
		s.Delete(t, doomed)
	}
	expires := s.Get(t, running).ExpiresAt
	if !ended(running) {
		expires = time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
		if got := s.Renew(t, running, expires.Format(time.RFC3339)); got.Status != http.StatusOK {
			t.Errorf("renew: %s", got)
		}
	}
	// It thaws those that are frozen first, and a client may have got that answer.
	thawed := func(id string) bool {
		status := s.Get(t, id).Status
		return !survives && id == paused && status.State == "Running" &&
			strings.Contains(status.Message, "another process thawed the container")
	}
	for id, state := range map[string]string{running: "Running", paused: "Paused",
		pausing: "Pausing", doomed: "Stopping", accepted: "Pending"} {
		if got := s.Get(t, id).Status; got.State != state && !ended(id) && !thawed(id) {
			t.Errorf("without an engine the sandbox is %s (%s: %s), want %s", got.State, got.Reason,
				got.Message, state)
		}
	}

	open()
	e.boot(t)
	s.Await(t, accepted, "Running")
	s.Enter(t, accepted).Want(t, "echo usable", "usable\n")
	s.Await(t, pulling, "Running")
	if !ended(doomed) {
		if got := s.Await(t, doomed, "Terminated").Status; got.Reason != "USER_DELETE" {
			t.Errorf("the deleted one: %s (%s)", got.Reason, got.Message)
		}
	}
	if survives {
		s.Await(t, pausing, "Paused")
		s.Enter(t, running).Want(t, "cat /tmp/note", "kept\n")
		s.Resume(t, paused)
		s.Enter(t, paused).Want(t, "echo usable", "usable\n")
	} else {
		for _, id := range []string{running, paused, pausing} {
			status := s.Await(t, id, "Failed").Status
			if status.Reason != "ENTRYPOINT_EXITED" ||
				!strings.Contains(status.Message, "exit code") {
				t.Errorf("a sandbox that the engine ended: %s: %s", status.Reason, status.Message)
			}
			t.Logf("%s: %s", status.Reason, status.Message)
		}
	}
	if got := s.Get(t, running).ExpiresAt; !got.Equal(expires) {
		t.Errorf("the sandbox expires at %v, the renewal said %v", got, expires)
	}
	for _, id := range starting {
		status := s.Settled(t, id)
		if status.State != "Running" &&
			!slices.Contains([]string{"ENTRYPOINT_EXITED"}, status.Reason) {
			t.Errorf("one that was being started is %s: %s: %s", status.State, status.Reason,
				status.Message)
		}
		t.Logf("one that was being started is %s: %s: %s", status.State, status.Reason,
			status.Message)
	}
	checkTruth(t, s)
	checkNoContainerWithoutRecord(t, s)

	s.DeleteAll(t)
	if left := e.docker(t, nil, "ps", "--all", "--quiet"); left != "" {
		t.Errorf("containers are left: %q", left)
	}
	if volumes := strings.Fields(e.docker(t, nil, "volume", "ls", "--quiet")); len(volumes) != 2 ||
		!strings.HasPrefix(volumes[0], "sandbox-execd-") || volumes[1] != "sandbox-execd-limits" {
		t.Errorf("the volumes are %q, want the one with execd, and that of the files which show limits", volumes)
	}
	if networks := strings.Fields(e.docker(t, nil, "network", "ls", "--format",
		"{{.Name}}")); len(networks) != 3 {
		t.Errorf("the networks are %q, want the engine's own three", networks)
	}
}

// checkTruth compares states with what the engine says of the containers.
func checkTruth(t *testing.T, s *service) {
	t.Helper()
	want := map[engine.Status]string{engine.StatusRunning: "Running", engine.StatusFrozen: "Paused"}
	for _, container := range s.containers(t) {
		id := container.Labels["sandbox.internal/id"]
		if got := s.Get(t, id).Status; !conformance.Final(got.State) &&
			got.State != want[container.Status] {
			t.Errorf("%s is %s (%s), its container is %s", id, got.State, got.Message,
				container.Status)
		}
	}
}
