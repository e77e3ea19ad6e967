package e2e_test

import (
	"os"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestTwoServersOnOneEngine has one service lose its database and take up its sandboxes from
// labels, beside another one at work.
func TestTwoServersOnOneEngine(t *testing.T) {
	t.Parallel()
	quiet, crashing := start(t, conformance.Plan{}), start(t, conformance.Plan{Program: true})
	running, paused := quiet.Running(t, idle()), quiet.Running(t, idle())
	quiet.Enter(t, running).Want(t, "echo kept > /tmp/note", "")
	quiet.Pause(t, paused)
	own := crashing.Running(t, idle())
	before := map[string]string{}
	for _, container := range quiet.containers(t) {
		before[container.ID] = string(container.Status)
	}
	if len(before) != 2 {
		t.Fatalf("the quiet service has the containers %v", before)
	}

	for range 2 {
		crashing.Kill()
		if err := os.RemoveAll(crashing.Directory); err != nil {
			t.Fatal(err)
		}
		passing := quiet.Create(t, idle()) // while the other recovers
		crashing.Boot(t)
		crashing.Await(t, own, "Running")
		if got := conformance.IDs(crashing.Everything(t)); len(got) != 1 || got[0] != own {
			t.Errorf("the one without a database has %v, its own is %s", got, own)
		}
		quiet.Await(t, passing, "Running")
		quiet.Delete(t, passing)
		quiet.Await(t, passing, "Terminated")
	}
	crashing.Delete(t, own)
	crashing.Await(t, own, "Terminated")

	quiet.Enter(t, running).Want(t, "cat /tmp/note", "kept\n")
	if got := quiet.Get(t, paused).Status; got.State != "Paused" {
		t.Errorf("the paused one is %s (%s)", got.State, got.Message)
	}
	for _, container := range quiet.containers(t) {
		if before[container.ID] != string(container.Status) {
			t.Errorf("container %s is %s, it was %q", container.Name, container.Status,
				before[container.ID])
		}
	}
}

// TestSecondServerIsRefused starts a service on what belongs to one that runs: its records, and its
// name at the engine.
func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true})
	id := s.Running(t, idle())
	for name, c := range map[string]struct {
		instance, directory string
		says                []string
	}{
		"same records": {s.Instance + "-2", s.Directory,
			[]string{s.Directory, "in use by another process"}},
		"same instance": {s.Instance, t.TempDir(),
			[]string{"server.instance", s.Instance, "another service on this machine"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused(t, c.instance, c.directory, "")
			if err == nil {
				t.Fatal("the second service starts")
			}
			conformance.Contains(t, err.Error(), c.says...)
		})
	}
	s.Enter(t, id).Want(t, "echo untouched", "untouched\n")
}
