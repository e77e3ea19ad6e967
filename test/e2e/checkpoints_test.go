package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// rollBack rolls a sandbox back and waits until it runs.
func (s *service) rollBack(t *testing.T, id, snapshot string) {
	t.Helper()
	got := s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/rollback", fmt.Sprintf(`{"snapshotId":%q}`, snapshot), "Prefer", "wait=60")
	if got.Status != http.StatusAccepted {
		t.Fatalf("rollback: %s", got)
	}
	if box := s.Await(t, id, "Running"); conformance.Value(box.SnapshotID) != snapshot {
		t.Fatalf("the sandbox has the files of %q, and %s: %s", conformance.Value(box.SnapshotID), box.Status.Reason, box.Status.Message)
	}
}

// TestRollbackOverKills: a sandbox is rolled back, with a volume of the host and whatever network
// it has, also by the next service when one is killed meanwhile.
func TestRollbackOverKills(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"own network": "", "spare network": spares(1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(directory, "file"), []byte("of the host\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			s := start(t, conformance.Plan{Program: true, Settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]\n", directory) + settings})
			if settings != "" {
				s.awaitSpares(t, 1)
			}
			r := idle()
			r.Volumes = []lifecycle.Volume{conformance.HostVolume(directory, "/host")}
			id := s.Running(t, r)
			s.Enter(t, id).Want(t, "echo kept >/root/note", "")
			before := s.Snapshot(t, id, "{}").ID
			s.Enter(t, id).Want(t, "echo lost >/root/note", "")
			s.rollBack(t, id, before)
			s.Enter(t, id).Want(t, "cat /root/note /host/file", "kept\nof the host\n")
			for round := range 4 {
				container, err := s.engine.Inspect(wait.Context(t), "sandbox-"+id)
				if err != nil {
					t.Fatal(err)
				}
				s.Enter(t, id).Want(t, "echo lost >/root/note", "")
				got := s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/rollback", fmt.Sprintf(`{"snapshotId":%q}`, before))
				if got.Status != http.StatusAccepted {
					t.Fatalf("rollback: %s", got)
				}
				if round%2 == 1 { // in the other rounds the service is killed before or at once
					wait.Until(t, "there is the other container", func() bool {
						return slices.ContainsFunc(s.containers(t), func(c engine.Container) bool {
							return c.Labels["sandbox.internal/record"] != "" && c.ID != container.ID
						})
					})
				}
				s.Kill()
				s.Boot(t)
				s.Await(t, id, "Running")
				s.Enter(t, id).Want(t, "cat /root/note /host/file", "kept\nof the host\n")
			}
			s.Delete(t, id)
			s.Gone(t, id)
			s.leavesNothing(t)
		})
	}
}

// TestRollbackKeepsThePolicy: the policy in force holds after a rollback, and so it does in a fork.
func TestRollbackKeepsThePolicy(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, conformance.Plan{Settings: o.EgressSettings(egressImage)})
	id := s.Running(t, s.Confined("allowed.test"))
	s.Enter(t, id).Want(t, "echo kept >/root/note", "")
	before := s.Snapshot(t, id, "{}").ID
	s.Enter(t, id).Want(t, "rm /root/note", "")
	s.rollBack(t, id, before)
	forked, err := conformance.Decode[lifecycle.ForkList](s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/fork", `{"count":1}`))
	if err != nil || len(forked.Items) != 1 || forked.Items[0].Sandbox == nil {
		t.Fatalf("fork: %+v, %v", forked, err)
	}
	fork := forked.Items[0].Sandbox.ID
	s.Await(t, fork, "Running")
	for _, box := range []string{id, fork} {
		inside := s.Enter(t, box)
		inside.Want(t, "cat /root/note", "kept\n")
		conformance.Reaches(t, inside, "allowed.test")
		conformance.ReachesNot(t, inside, "denied.test")
		conformance.ReachesNot(t, inside, o.Denied)
	}
}
