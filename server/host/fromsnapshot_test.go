package host_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// from is a spec that begins with a snapshot, and leaves out what it can.
func from(snapshot string) lifecycle.Spec {
	return lifecycle.Spec{SnapshotID: snapshot, Timeout: time.Hour}
}

// TestCreateFromASnapshot: the sandbox has the files, the image and the defaults of the snapshot,
// and no registry is asked.
func TestCreateFromASnapshot(t *testing.T) {
	m := newMachine(t).start()
	asked := spec()
	asked.Resources = lifecycle.ResourceLimits{"cpu": "500m"}
	asked.Env = map[string]string{"SECRET": "x"}
	origin, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.await(origin.ID, lifecycle.StateRunning)
	m.engine.write(container(origin.ID), "written")
	kept := m.keep(origin.ID)
	m.engine.write(container(origin.ID), "later")
	if err := m.host.Delete(t.Context(), origin.ID); err != nil {
		t.Fatal(err)
	}
	m.await(origin.ID, lifecycle.StateTerminated)
	pulls := m.engine.count(callEnsureImage)

	made, err := m.host.Create(t.Context(), from(kept.ID), lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.await(made.ID, lifecycle.StateRunning)
	if got := m.engine.read(container(made.ID)); got != "written" {
		t.Errorf("the files of the sandbox are %q", got)
	}
	got, record := m.get(made.ID), m.host.RecordOf(made.ID)
	if got.Image != "busybox" || got.SnapshotID != kept.ID || !slices.Equal(got.Entrypoint, asked.Entrypoint) || got.Limits.NanoCPUs != 5e8 || record.Spec.Env != nil {
		t.Errorf("the sandbox is %+v with %+v", got, record.Spec)
	}
	if again := m.engine.count(callEnsureImage); again != pulls {
		t.Errorf("the engine was asked for an image %d times", again-pulls)
	}
	if next := m.keep(made.ID); next.ParentID != kept.ID {
		t.Errorf("the parent of a snapshot of it is %q, want %q", next.ParentID, kept.ID)
	}
	other := from(kept.ID)
	other.Entrypoint, other.Resources = []string{"other"}, lifecycle.ResourceLimits{"memory": "1Gi"}
	made, err = m.host.Create(t.Context(), other, lifecycle.CreateOptions{})
	if err != nil || !slices.Equal(made.Entrypoint, other.Entrypoint) || made.Limits.NanoCPUs != 0 || made.Limits.MemoryBytes != 1<<30 {
		t.Errorf("the sandbox with settings of its own is %+v (%v)", made, err)
	}
}

// TestCreateFromASnapshotIsRefused: what is missing, another's or not Ready, and what could be
// wider than the snapshot's sandbox.
func TestCreateFromASnapshotIsRefused(t *testing.T) {
	m, _ := withSidecars(t)
	m.host.Close()
	m.box.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "class", Handler: "runsc", EgressSidecar: true}}
	m.start()
	asked := spec()
	asked.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	origin, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.await(origin.ID, lifecycle.StateRunning)
	request := files()
	request.Owner = "one"
	kept := m.awaitSnapshot(m.take(origin.ID, request), lifecycle.SnapshotReady)
	m.engine.failBefore(callTakeSnapshot, times(1, errRefused))
	failed := m.awaitSnapshot(m.take(origin.ID, request), lifecycle.SnapshotFailed)
	for name, test := range map[string]struct {
		change func(*lifecycle.Spec)
		owner  string
		kind   lifecycle.Kind
		words  string
	}{
		"missing":       {func(s *lifecycle.Spec) { s.SnapshotID = "missing" }, "one", lifecycle.KindNoSnapshot, "missing"},
		"another's":     {func(*lifecycle.Spec) {}, "two", lifecycle.KindNoSnapshot, kept.ID},
		"failed":        {func(s *lifecycle.Spec) { s.SnapshotID = failed.ID }, "one", lifecycle.KindConflict, "is Failed"},
		"image":         {func(s *lifecycle.Spec) { s.Image = "busybox" }, "one", lifecycle.KindInvalid, "image: must be left out"},
		"policy":        {func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{} }, "one", lifecycle.KindInvalid, "networkPolicy: must be left out"},
		"runtime class": {func(s *lifecycle.Spec) { s.RuntimeClass = "class" }, "one", lifecycle.KindInvalid, "runtimeClass: must be left out"},
		"other rules":   {func(s *lifecycle.Spec) { s.Timeout = 0 }, "one", lifecycle.KindInvalid, "timeout: "},
	} {
		t.Run(name, func(t *testing.T) {
			s := from(kept.ID)
			test.change(&s)
			_, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{Owner: test.owner, Role: lifecycle.RoleUser})
			if kindOf(err) != test.kind || !strings.Contains(err.Error(), test.words) {
				t.Errorf("%v, want %s and %q", err, test.kind, test.words)
			}
		})
	}
	made, err := m.host.Create(t.Context(), from(kept.ID), lifecycle.CreateOptions{Owner: "two", Role: lifecycle.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	m.await(made.ID, lifecycle.StateRunning)
	if got := m.host.RecordOf(made.ID).Spec.NetworkPolicy; got == nil || got.DefaultAction != "deny" {
		t.Errorf("the policy is %+v", got)
	}
}

// TestSnapshotStaysForItsSandboxes: one that is deleted is removed when the sandboxes that begin
// with it have been made, also by the next service, and a repeated request returns its sandbox.
func TestSnapshotStaysForItsSandboxes(t *testing.T) {
	m := newMachine(t).start()
	kept := m.keep(m.running())
	hold := newGate()
	m.engine.failBefore(callCreate, hold.fault)
	options := lifecycle.CreateOptions{IdempotencyKey: "key"}
	made, err := m.host.Create(t.Context(), from(kept.ID), options)
	if err != nil {
		t.Fatal(err)
	}
	hold.await(t)
	if err := m.host.DeleteSnapshot(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.host.Create(t.Context(), from(kept.ID), lifecycle.CreateOptions{}); kindOf(err) != lifecycle.KindNoSnapshot {
		t.Errorf("a create with a snapshot that is Deleting: %v", err)
	}
	m.host.Close()
	if names := m.engine.snapshotNames(); !slices.Equal(names, []string{engineName(kept.ID)}) {
		t.Errorf("the engine has the snapshots %v", names)
	}
	m.engine.failBefore(callCreate, nil)
	m.start()
	m.await(made.ID, lifecycle.StateRunning)
	m.awaitRemoval(kept.ID)
	if again, err := m.host.Create(t.Context(), from(kept.ID), options); err != nil || again.ID != made.ID {
		t.Errorf("the repeated request returns %s (%v), want %s", again.ID, err, made.ID)
	}
}

// TestRollback: the sandbox has the files of the snapshot, and all else as before.
func TestRollback(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *machine, string){
		"running": func(*testing.T, *machine, string) {},
		"paused": func(t *testing.T, m *machine, id string) {
			if err := m.host.Pause(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			m.await(id, lifecycle.StatePaused)
		},
		"stopped": func(_ *testing.T, m *machine, id string) {
			m.reboot()
			m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := withSidecars(t)
			asked := spec()
			asked.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
			sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			id := sandbox.ID
			m.await(id, lifecycle.StateRunning)
			m.engine.write(container(id), "before")
			kept := m.keep(id)
			m.keep(id)
			m.engine.write(container(id), "after")
			changed := lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "example.com"}}}
			if _, err := m.host.ChangeNetworkPolicy(t.Context(), id, lifecycle.PolicyChange{Replace: &changed}); err != nil {
				t.Fatal(err)
			}
			before := m.host.RecordOf(id)
			prepare(t, m, id)
			if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
				t.Fatal(err)
			}
			m.awaitReason(id, lifecycle.StateRunning, lifecycle.ReasonContainerRunning)
			if got := m.engine.read(container(id)); got != "before" {
				t.Errorf("the files are %q", got)
			}
			after := m.host.RecordOf(id)
			if after.Token != before.Token || after.Rollback != "" || after.Stopped || after.Port == 0 || after.Sandbox.SnapshotID != kept.ID || after.LastSnapshot != "" {
				t.Errorf("the record is %+v", after)
			}
			if got := after.Spec.NetworkPolicy; !reflect.DeepEqual(got, &changed) {
				t.Errorf("the policy is %+v", got)
			}
			if got := m.engine.status(sidecar(id)); got != engine.StatusRunning {
				t.Errorf("the sidecar is %q", got)
			}
			if next := m.keep(id); next.ParentID != kept.ID {
				t.Errorf("the parent of the next snapshot is %q, want %q", next.ParentID, kept.ID)
			}
			m.host.Sweep() // finds nothing to do
			if got := m.get(id).Status; got.State != lifecycle.StateRunning {
				t.Errorf("the sandbox is %+v", got)
			}
		})
	}
}

// TestRollbackIsRefused: to what is not the sandbox's, and of another image.
func TestRollbackIsRefused(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	asked := spec()
	asked.Image = "alpine"
	another, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.await(another.ID, lifecycle.StateRunning)
	request := files()
	foreign := m.keep(another.ID)
	request.Owner = "another"
	hidden := m.awaitSnapshot(m.take(another.ID, request), lifecycle.SnapshotReady)
	for snapshot, kind := range map[string]lifecycle.Kind{
		foreign.ID: lifecycle.KindConflict, hidden.ID: lifecycle.KindNoSnapshot, "missing": lifecycle.KindNoSnapshot,
	} {
		if err := m.host.Rollback(t.Context(), id, snapshot); kindOf(err) != kind {
			t.Errorf("%v, want %s", err, kind)
		}
	}
	if err := m.host.Rollback(t.Context(), "missing", foreign.ID); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("of a missing sandbox: %v", err)
	}
	if err := m.host.Delete(t.Context(), another.ID); err != nil {
		t.Fatal(err)
	}
	m.await(another.ID, lifecycle.StateTerminated)
	if err := m.host.Rollback(t.Context(), another.ID, foreign.ID); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("of an ended sandbox: %v", err)
	}
}

// separateSidecars are egress sidecars in memory with a policy each.
type separateSidecars struct {
	sidecars
	policies sync.Map // by token
}

func (g *separateSidecars) Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (map[string]string, bool, error) {
	if policy == nil {
		policy = &lifecycle.NetworkPolicy{DefaultAction: "allow"}
	}
	g.policies.Store(at.Token, *policy.Clone())
	return g.sidecars.Environment(at, policy)
}

func (g *separateSidecars) Policy(_ context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	policy, _ := g.policies.Load(at.Token)
	return policy.(lifecycle.NetworkPolicy), nil
}

func (g *separateSidecars) Change(_ context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	g.policies.Store(at.Token, *change.Replace)
	return *change.Replace, nil
}

// TestRollbackKeepsTheBounds: a snapshot of a sandbox of another runtime class, or with another
// policy, is refused; one that the sandbox has had itself is not.
func TestRollbackKeepsTheBounds(t *testing.T) {
	m, g := newMachine(t), &separateSidecars{}
	m.box.EgressImage, m.box.Sidecars, m.options.Sidecars = "egress", g, g
	m.box.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "class", Handler: "runsc", EgressSidecar: true}}
	m.start()
	create := func(asked lifecycle.Spec) string {
		sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.await(sandbox.ID, lifecycle.StateRunning)
		return sandbox.ID
	}
	open, closed, equal, classed := spec(), spec(), spec(), spec()
	closed.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	equal.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{}}
	classed.RuntimeClass = "class"
	opened, origin := create(open), create(closed)
	free, first, second := m.keep(opened), m.keep(origin), m.keep(origin)
	begun := create(from(first.ID))
	changed := lifecycle.NetworkPolicy{DefaultAction: "allow"}
	for _, id := range []string{origin, begun} {
		if _, err := m.host.ChangeNetworkPolicy(t.Context(), id, lifecycle.PolicyChange{Replace: &changed}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ sandbox, snapshot, refused string }{
		{opened, first.ID, "the network policy of snapshot " + first.ID + " differs"},
		{begun, second.ID, "create a sandbox with the snapshot instead"},
		{begun, first.ID, ""},  // its files come from it
		{origin, first.ID, ""}, // it is its own
		{create(equal), first.ID, ""},
		{create(closed), free.ID, ""}, // of a sandbox without a policy
		{create(classed), free.ID, `of the runtime class "", and the sandbox of "class"`},
	} {
		err := m.host.Rollback(t.Context(), test.sandbox, test.snapshot)
		if test.refused == "" && err != nil || test.refused != "" && (kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%v, want %q", err, test.refused)
		}
	}
}

// TestRollbackThatFails: a box that the engine has not touched runs on; any other is stopped, and
// can be resumed or rolled back again.
func TestRollbackThatFails(t *testing.T) {
	refused := fmt.Errorf("%w: of another image", engine.ErrInvalid)
	t.Run("untouched", func(t *testing.T) {
		for _, paused := range []bool{false, true} {
			m, _ := withSidecars(t)
			id := m.running()
			kept := m.keep(id)
			before := m.host.RecordOf(id)
			if paused {
				if err := m.host.Pause(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				m.await(id, lifecycle.StatePaused)
			}
			m.engine.failBefore(callRollback, times(1, refused))
			if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
				t.Fatal(err)
			}
			status := m.awaitReason(id, lifecycle.StateRunning, lifecycle.ReasonRollbackFailed)
			if !strings.Contains(status.Message, "of another image") {
				t.Errorf("the message is %q", status.Message)
			}
			if after := m.host.RecordOf(id); after.Port != before.Port || after.Sidecar.Port != before.Sidecar.Port || after.Rollback != "" || after.Sandbox.SnapshotID != "" || after.Stopped {
				t.Errorf("the record is %+v", after)
			}
		}
	})
	t.Run("ended", func(t *testing.T) {
		m := newMachine(t).start()
		id := m.running()
		kept := m.keep(id)
		m.engine.write(container(id), "after")
		m.engine.failBefore(callRollback, func(context.Context, string) error {
			m.engine.happen(container(id), engine.EventExited, func(c *engine.Container) { c.Status, c.Ports = engine.StatusStopped, nil })
			return refused
		})
		if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
			t.Fatal(err)
		}
		m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonRollbackFailed)
		m.host.Sweep()
		if got := m.host.RecordOf(id); !got.Stopped || got.Rollback != "" || got.Sandbox.Status.Reason != lifecycle.ReasonRollbackFailed {
			t.Errorf("the record is %+v", got)
		}
		if err := m.host.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		m.awaitReason(id, lifecycle.StateRunning, lifecycle.ReasonContainerRunning)
		if got := m.engine.read(container(id)); got != "after" {
			t.Errorf("the files are %q", got)
		}
		m.engine.failBefore(callRollback, nil)
		if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
			t.Fatal(err)
		}
		m.await(id, lifecycle.StateRunning)
	})
}

// TestRollbackGoesOn: a rollback that a service has accepted is finished by the next one, whatever
// the engine had done of it, and a sandbox can be deleted meanwhile.
func TestRollbackGoesOn(t *testing.T) {
	for name, call := range map[string]string{"before the engine": callRollback, "before the start": callStart} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			id, deleted := m.running(), m.running()
			kept := m.keep(id)
			m.engine.write(container(id), "after")
			hold := newGate()
			m.engine.failBefore(call, hold.fault)
			for _, sandbox := range []string{id, deleted} {
				if err := m.host.Rollback(t.Context(), sandbox, kept.ID); err != nil {
					t.Fatal(err)
				}
				hold.await(t)
			}
			if got := m.get(id).Status; got.State != lifecycle.StateResuming {
				t.Errorf("the sandbox is %+v", got)
			}
			if err := m.host.DeleteSnapshot(t.Context(), kept.ID); err != nil {
				t.Fatal(err)
			}
			if err := m.host.Delete(t.Context(), deleted); err != nil {
				t.Fatal(err)
			}
			m.host.Close()
			m.engine.failBefore(call, nil)
			m.start()
			m.await(id, lifecycle.StateRunning)
			m.await(deleted, lifecycle.StateTerminated)
			if got := m.engine.read(container(id)); got != "" {
				t.Errorf("the files are %q", got)
			}
			if got := m.get(id).SnapshotID; got != kept.ID {
				t.Errorf("the files of the sandbox come from %q", got)
			}
			m.awaitRemoval(kept.ID)
		})
	}
}

// TestRollbackAfterSnapshots: a snapshot that was asked for before has the files from before.
func TestRollbackAfterSnapshots(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	kept := m.keep(id)
	m.engine.write(container(id), "after")
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	second := m.take(id, files())
	hold.await(t)
	if err := m.host.Rollback(t.Context(), id, kept.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.host.TakeSnapshot(t.Context(), id, files()); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a snapshot during a rollback: %v", err)
	}
	if got := m.engine.count(callRollback); got != 0 {
		t.Errorf("the engine was asked for %d rollbacks", got)
	}
	close(hold.open)
	m.await(id, lifecycle.StateRunning)
	m.awaitSnapshot(second, lifecycle.SnapshotReady)
	if err := m.host.Rollback(t.Context(), id, second); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the second rollback is done", func() bool { return m.get(id).SnapshotID == second && m.get(id).Status.State == lifecycle.StateRunning },
		func() any { return m.get(id) })
	if got := m.engine.read(container(id)); got != "after" {
		t.Errorf("the files are %q", got)
	}
}

// fork forks a sandbox, and waits for the forks.
func (m *machine) fork(id string, request lifecycle.ForkRequest, options lifecycle.CreateOptions) []lifecycle.ForkResult {
	m.t.Helper()
	request.Snapshot = files()
	results, err := m.host.Fork(m.t.Context(), id, request, options)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, result := range results {
		if result.Err == nil && !result.Sandbox.Status.State.Final() {
			m.await(result.Sandbox.ID, lifecycle.StateRunning)
		}
	}
	return results
}

// TestFork: each has the files and the settings of its sandbox, but for the environment, and the
// snapshot is removed.
func TestFork(t *testing.T) {
	m, _ := withSidecars(t)
	asked := spec()
	asked.Env = map[string]string{"SECRET": "x"}
	asked.Metadata = map[string]string{"name": "origin"}
	asked.Resources = lifecycle.ResourceLimits{"cpu": "500m"}
	asked.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	asked.Extensions = []byte(`{"a":1}`)
	asked.Volumes = []lifecycle.Volume{{Name: "v", MountPath: "/v", ReadOnly: true, ClaimName: "claim"}}
	origin, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{Role: lifecycle.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	m.await(origin.ID, lifecycle.StateRunning)
	m.engine.write(container(origin.ID), "written")
	changed := lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "example.com"}}}
	if _, err := m.host.ChangeNetworkPolicy(t.Context(), origin.ID, lifecycle.PolicyChange{Replace: &changed}); err != nil {
		t.Fatal(err)
	}
	options := lifecycle.CreateOptions{Role: lifecycle.RoleAdmin, IdempotencyKey: "key"}
	request := lifecycle.ForkRequest{Count: 3, Timeout: 2 * time.Hour, Env: map[string]string{"OWN": "1"}}
	results := m.fork(origin.ID, request, options)
	tokens := map[string]bool{m.host.RecordOf(origin.ID).Token: true}
	for _, result := range results {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
		record := m.host.RecordOf(result.Sandbox.ID)
		tokens[record.Token] = true
		if m.engine.read(container(result.Sandbox.ID)) != "written" || len(record.Spec.Env) != 1 || record.Spec.Env["OWN"] != "1" ||
			record.Sandbox.Metadata["name"] != "origin" || record.Sandbox.Limits.NanoCPUs != 5e8 || !reflect.DeepEqual(record.Spec.NetworkPolicy, &changed) ||
			!reflect.DeepEqual(record.Spec.Volumes, asked.Volumes) || string(record.Sandbox.Extensions) != `{"a":1}` || record.Spec.Timeout != 2*time.Hour ||
			!slices.Equal(record.Sandbox.Entrypoint, asked.Entrypoint) {
			t.Errorf("the fork is %+v", record)
		}
		m.awaitRemoval(record.Sandbox.SnapshotID)
	}
	if len(tokens) != 4 {
		t.Errorf("there are %d tokens", len(tokens))
	}
	again := m.fork(origin.ID, request, options)
	for i := range results {
		if again[i].Sandbox.ID != results[i].Sandbox.ID {
			t.Errorf("a repeated request returns %s, want %s", again[i].Sandbox.ID, results[i].Sandbox.ID)
		}
	}
	if got := m.engine.count(callTakeSnapshot); got != 1 {
		t.Errorf("%d snapshots were taken", got)
	}
	request.Env = nil
	if _, err := m.host.Fork(t.Context(), origin.ID, request, options); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("the key with another request: %v", err)
	}
	if got := m.host.RecordOf(origin.ID); got.LastSnapshot != "" {
		t.Errorf("the last snapshot of the sandbox is %q", got.LastSnapshot)
	}
	listing, err := m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{}, lifecycle.Page{Number: 1, Size: 10})
	if err != nil || listing.Total != 0 {
		t.Errorf("listed: %+v, %v", listing, err)
	}
}

// TestForkBeyondAQuota: as many as there is room for, and an error when there is none.
func TestForkBeyondAQuota(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	options := lifecycle.CreateOptions{MaxSandboxes: 3, IdempotencyKey: "key"}
	results := m.fork(id, lifecycle.ForkRequest{Count: 4}, options)
	var failed []bool
	for _, result := range results {
		failed = append(failed, result.Err != nil)
		if result.Err != nil && kindOf(result.Err) != lifecycle.KindConflict {
			t.Error(result.Err)
		}
	}
	if want := []bool{false, false, true, true}; !slices.Equal(failed, want) {
		t.Errorf("failed are %v, want %v", failed, want)
	}
	if _, err := m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: 2, Snapshot: files()}, lifecycle.CreateOptions{MaxSandboxes: 3}); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("without any room: %v", err)
	}
	if err := m.host.Delete(t.Context(), results[0].Sandbox.ID); err != nil {
		t.Fatal(err)
	}
	m.await(results[0].Sandbox.ID, lifecycle.StateTerminated)
	again := m.fork(id, lifecycle.ForkRequest{Count: 4}, options)
	if again[0].Sandbox.ID != results[0].Sandbox.ID || again[1].Sandbox.ID != results[1].Sandbox.ID || again[2].Err != nil || again[3].Err == nil {
		t.Errorf("a repeated request returns %+v", again)
	}
	wait.Until(t, "the snapshots are removed", func() bool { return len(m.engine.snapshotNames()) == 0 }, func() any { return m.engine.snapshotNames() })
}

// TestForkOfAnEndedSandbox: a repeated request returns the sandboxes that there are, and why there
// are not more.
func TestForkOfAnEndedSandbox(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	options := lifecycle.CreateOptions{MaxSandboxes: 3, IdempotencyKey: "key"}
	results := m.fork(id, lifecycle.ForkRequest{Count: 4}, options)
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	for i, again := range m.fork(id, lifecycle.ForkRequest{Count: 4}, options) {
		if again.Sandbox.ID != results[i].Sandbox.ID || (again.Err != nil) != (i >= 2) || again.Err != nil && kindOf(again.Err) != lifecycle.KindConflict {
			t.Errorf("fork %d is %s (%v), want %s", i, again.Sandbox.ID, again.Err, results[i].Sandbox.ID)
		}
	}
	options.IdempotencyKey = "another"
	if _, err := m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: 4, Snapshot: files()}, options); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("with another key: %v", err)
	}
}

// TestForkWhoseClientGoes: its snapshot is removed, also where its deletion cannot be saved at
// first, and the service can end meanwhile.
func TestForkWhoseClientGoes(t *testing.T) {
	for name, ends := range map[string]bool{"the service goes on": false, "the service ends": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			id := m.running()
			m.store.fail(callSaveSnapshot, errDisk)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := m.host.Fork(ctx, id, lifecycle.ForkRequest{Count: 2, Snapshot: files()}, lifecycle.CreateOptions{})
				failed <- err
			}()
			wait.Until(t, "the engine has a snapshot", func() bool { return len(m.engine.snapshotNames()) == 1 })
			temporary := strings.TrimPrefix(m.engine.snapshotNames()[0], engineName(""))
			if got := m.snapshot(temporary); !got.Temporary || got.ExpiresAt.Sub(got.CreatedAt) != 20*time.Minute {
				t.Errorf("the snapshot is %+v", got)
			}
			cancel()
			if err := wait.For(t, "the end of the fork", failed); !errors.Is(err, context.Canceled) {
				t.Errorf("the fork: %v", err)
			}
			if ends {
				ended := make(chan struct{})
				go func() {
					m.host.Close()
					close(ended)
				}()
				wait.For(t, "the end of the service", ended)
			}
			m.store.fail(callSaveSnapshot, nil)
			if ends {
				m.start()
			}
			m.awaitRemoval(temporary)
		})
	}
}

// changingStore is a store that holds the digest of a snapshot until the gate is open, and says
// when a snapshot could not be saved.
type changingStore struct {
	*watchedStore
	gate   *gate
	failed chan struct{} // holds one
}

func (s *changingStore) SaveSnapshotUnsynced(ctx context.Context, snapshot lifecycle.Snapshot) error {
	if err := s.gate.fault(ctx, snapshot.ID); err != nil {
		return err
	}
	return s.watchedStore.SaveSnapshotUnsynced(ctx, snapshot)
}

func (s *changingStore) SaveSnapshot(ctx context.Context, snapshot lifecycle.Snapshot, r *lifecycle.Record, events ...lifecycle.Event) error {
	err := s.watchedStore.SaveSnapshot(ctx, snapshot, r, events...)
	if err != nil {
		select {
		case s.failed <- struct{}{}:
		default:
		}
	}
	return err
}

// TestUnwantedSnapshotGoes: a snapshot that could not be deleted is deleted once the store can save
// that, although another change of the snapshot began before and ended after the attempt.
func TestUnwantedSnapshotGoes(t *testing.T) {
	m := newMachine(t)
	store := &changingStore{m.store, newGate(), make(chan struct{}, 1)}
	m.options.Store = store
	m.start()
	kept := m.keep(m.running())
	store.gate.await(t)
	m.store.fail(callSaveSnapshot, errDisk)
	m.host.UnwantSnapshot(kept.ID)
	close(store.gate.open)
	wait.For(t, "an attempt to delete the snapshot", store.failed)
	if got := m.awaitDigest(kept.ID); got == "" || !m.snapshot(kept.ID).ExpiresAt.IsZero() {
		t.Errorf("the snapshot is %+v", m.snapshot(kept.ID))
	}
	m.store.fail(callSaveSnapshot, nil)
	m.awaitRemoval(kept.ID)
}

// TestForkThatFails leaves nothing.
func TestForkThatFails(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.failBefore(callTakeSnapshot, times(1, engine.ErrNoRoom))
	_, err := m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: 2, Snapshot: files()}, lifecycle.CreateOptions{})
	if kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "NO_ROOM") {
		t.Errorf("a fork whose snapshot fails: %v", err)
	}
	for _, count := range []int{0, lifecycle.MaxForks + 1} {
		if _, err := m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: count, Snapshot: files()}, lifecycle.CreateOptions{}); kindOf(err) != lifecycle.KindInvalid {
			t.Errorf("%d forks: %v", count, err)
		}
	}
	wait.Until(t, "no snapshot is left", func() bool {
		return m.host.CountSnapshots()[lifecycle.SnapshotDeleting]+m.host.CountSnapshots()[lifecycle.SnapshotFailed] == 0
	},
		func() any { return m.host.CountSnapshots() })
}

// TestRestartEndsForks: a fork that a service has not answered leaves no snapshot.
func TestRestartEndsForks(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	hold := newGate()
	m.engine.failBefore(callTakeSnapshot, hold.fault)
	ended := make(chan error, 1)
	go func() {
		_, err := m.host.Fork(t.Context(), id, lifecycle.ForkRequest{Count: 2, Snapshot: files()}, lifecycle.CreateOptions{})
		ended <- err
	}()
	hold.await(t)
	m.host.Close()
	if err := wait.For(t, "the fork ends", ended); kindOf(err) != lifecycle.KindUnavailable {
		t.Errorf("the fork: %v", err)
	}
	close(hold.open)
	m.start()
	wait.Until(t, "no snapshot is left", func() bool { return len(m.host.CountSnapshots()) == 0 }, func() any { return m.host.CountSnapshots() })
	if names := m.engine.snapshotNames(); len(names) != 0 {
		t.Errorf("the engine has %v", names)
	}
}
