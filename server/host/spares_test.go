package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// spareKind is what owns the networks that are made ahead.
type spareKind struct {
	name, suffix string
	sidecars     *sidecars // nil without sidecars
}

// onSpares runs a test with each kind of spare networks, as many as given.
func onSpares(t *testing.T, size int, test func(t *testing.T, m *machine, kind spareKind)) {
	for _, kind := range []spareKind{{name: "holder", suffix: "-network"}, {name: "sidecar", suffix: "-egress", sidecars: &sidecars{}}} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.box.SpareNetworks = size
			if kind.sidecars != nil {
				m.box.EgressImage, m.box.Sidecars, m.options.Sidecars = "egress", kind.sidecars, kind.sidecars
			}
			test(t, m, kind)
		})
	}
}

// owners returns the ids of the boxes that have an owner of their network and nothing else.
func (m *machine) owners(kind spareKind) []string {
	names := m.engine.names()
	var ids []string
	for _, name := range names {
		id, owner := strings.CutSuffix(strings.TrimPrefix(name, "sandbox-"), kind.suffix)
		if owner && !slices.Contains(names, container(id)) && m.engine.status(name) == engine.StatusRunning {
			ids = append(ids, id)
		}
	}
	return ids
}

// awaitSpares waits until that many networks are free, and returns their ids.
func (m *machine) awaitSpares(kind spareKind, count int) (ids []string) {
	m.t.Helper()
	wait.Until(m.t, fmt.Sprintf("%d networks are made ahead", count), func() bool {
		free, _, _ := m.boxes.SpareNetworkCounts()
		ids = m.owners(kind)
		return free == count && len(ids) == count
	}, func() any { return m.engine.names() })
	return ids
}

func TestSpareNetworks(t *testing.T) {
	t.Parallel()
	onSpares(t, 2, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		spares := m.awaitSpares(kind, 2)
		m.host.Sweep()
		if left := m.owners(kind); len(left) != 2 {
			t.Fatalf("after a sweep: %v", left)
		}
		asked := spec()
		if kind.sidecars != nil {
			asked.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "a.example"}}}
			m.engine.failBefore(callCreate, func(_ context.Context, name string) error {
				if name == container(spares[0]) || name == container(spares[1]) {
					if policy, _ := kind.sidecars.Policy(context.Background(), lifecycle.Sidecar{}); len(policy.Egress) != 1 {
						return errors.New("the policy is not in force yet")
					}
				}
				return nil
			})
		}
		sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id := sandbox.ID
		if _, taken, missed := m.boxes.SpareNetworkCounts(); !slices.Contains(spares, id) || taken != 1 || missed != 0 {
			t.Errorf("sandbox %s has none of the networks %v (%d taken, %d missed)", id, spares, taken, missed)
		}
		m.await(id, lifecycle.StateRunning)
		location, err := m.host.Locate(t.Context(), id, 80)
		if err != nil || location.Endpoint.Port != m.engine.port(container(id)+kind.suffix) {
			t.Errorf("endpoint: %+v, %v", location.Endpoint, err)
		}
		m.awaitSpares(kind, 2) // another is made
		if err := m.host.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		m.await(id, lifecycle.StateTerminated)
		if slices.ContainsFunc(m.engine.names(), func(name string) bool { return strings.Contains(name, id) }) {
			t.Errorf("left: %v", m.engine.names())
		}
		m.host.Close()
		if left := m.engine.names(); len(left) != 0 {
			t.Errorf("left by the service: %v", left)
		}
	})
}

// TestMoreSandboxesThanSpares: those that find none get a network as without spares.
func TestMoreSandboxesThanSpares(t *testing.T) {
	t.Parallel()
	onSpares(t, 2, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		spares := m.awaitSpares(kind, 2)
		var group sync.WaitGroup
		ids := make([]string, 6)
		for i := range ids {
			group.Go(func() { ids[i] = m.create() })
		}
		group.Wait()
		for _, id := range ids {
			m.await(id, lifecycle.StateRunning)
		}
		for _, spare := range spares {
			if !slices.Contains(ids, spare) {
				t.Errorf("network %s was not taken", spare)
			}
		}
		owners := 0
		for _, id := range ids {
			if m.engine.status(container(id)+kind.suffix) == engine.StatusRunning {
				owners++
			}
		}
		if want := map[bool]int{true: 6, false: 2}[kind.sidecars != nil]; owners != want {
			t.Errorf("%d networks have an owner of their own, want %d", owners, want)
		}
	})
}

// TestSpareThatIsOfNoUse: it ended, or was removed without a word, before or after a sandbox took
// it.
func TestSpareThatIsOfNoUse(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		ended := m.awaitSpares(kind, 1)[0]
		m.engine.exit(container(ended)+kind.suffix, 1, false)
		// Also free: what runs at the engine is not yet one that a sandbox can take.
		if next := m.awaitSpares(kind, 1)[0]; next == ended {
			t.Error("the one that ended is kept")
		}
		if m.engine.status(container(ended)+kind.suffix) != "" {
			t.Errorf("left: %v", m.engine.names())
		}
		pull := newGate()
		m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
			if ref == "busybox" {
				return pull.fault(ctx, ref)
			}
			return nil
		})
		id := m.create()
		pull.await(t)
		m.engine.happen(container(id)+kind.suffix, engine.EventRemoved, nil)
		close(pull.open)
		m.await(id, lifecycle.StateRunning)
		if m.engine.status(container(id)+kind.suffix) != engine.StatusRunning {
			t.Errorf("no network: %v", m.engine.names())
		}
		m.engine.exit(container(id)+kind.suffix, 137, false)
		if status := m.await(id, lifecycle.StateFailed); status.Reason != lifecycle.ReasonNetworkError || !strings.Contains(status.Message, "exit code 137") {
			t.Errorf("status: %+v", status)
		}
	})
}

// TestSpareOfADeletedSandbox: it is deleted before anything of it was started.
func TestSpareOfADeletedSandbox(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		m.awaitSpares(kind, 1)
		pull := newGate()
		m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
			if ref == "busybox" {
				return pull.fault(ctx, ref)
			}
			return nil
		})
		id := m.create()
		pull.await(t)
		if err := m.host.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		m.await(id, lifecycle.StateTerminated)
		if m.engine.status(container(id)+kind.suffix) != "" {
			t.Errorf("left: %v", m.engine.names())
		}
	})
}

// TestSpareOfARecordThatIsNotDurable is swept, once no record can be on its way.
func TestSpareOfARecordThatIsNotDurable(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		id := m.awaitSpares(kind, 1)[0]
		m.store.fail(callInsert, errDisk)
		if _, err := m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{}); !errors.Is(err, errDisk) {
			t.Fatalf("create: %v", err)
		}
		m.host.Sweep()
		if m.engine.status(container(id)+kind.suffix) != engine.StatusRunning {
			t.Error("the container was swept while its record could have been on its way")
		}
		m.clock.advance(time.Minute)
		wait.Until(t, "the network is removed", func() bool {
			m.host.Sweep()
			return m.engine.status(container(id)+kind.suffix) == ""
		}, func() any { return m.engine.names() })
	})
}

// TestSparesOfAKilledService: a network that no record names is removed, one that a record names is
// replaced before its sandbox starts.
func TestSparesOfAKilledService(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		left := func(id string) {
			m.engine.put(engine.Container{Name: container(id) + kind.suffix, Status: engine.StatusRunning, Labels: map[string]string{
				"sandbox.internal/id": id, "sandbox.internal/box": id, "sandbox.internal/instance": instance, "sandbox.internal/sidecar": "x",
			}})
		}
		left("free")
		left("taken")
		r := m.record("taken", lifecycle.StatePending)
		r.Box, r.SpareNetwork = "taken", true
		if kind.sidecars != nil {
			r.Sidecar = &lifecycle.Sidecar{Image: "egress", Token: "token"}
		}
		m.had(r, "")
		m.start()
		m.await("taken", lifecycle.StateRunning)
		if m.engine.status(container("free")+kind.suffix) != "" || m.engine.status(container("taken")+kind.suffix) != engine.StatusRunning {
			t.Errorf("containers: %v", m.engine.names())
		}
	})
}

// TestSparesWhileTheEngineFails: what cannot be made now is made later, and sandboxes do not wait
// for it.
func TestSparesWhileTheEngineFails(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		refused := make(chan struct{}, 100)
		var mu sync.Mutex
		fails := true
		m.engine.failAfter(callStart, func(_ context.Context, name string) error {
			mu.Lock()
			defer mu.Unlock()
			if fails && strings.HasSuffix(name, kind.suffix) {
				refused <- struct{}{}
				return errRefused
			}
			return nil
		})
		m.start()
		wait.For(t, "a refusal", refused)
		mu.Lock()
		fails = false
		mu.Unlock()
		m.running()
		m.awaitSpares(kind, 1)
		m.engine.hangUp() // containers may have ended with the engine
		before := m.owners(kind)
		wait.Until(t, "another network is made ahead", func() bool { now := m.owners(kind); return len(now) == 1 && !slices.Equal(now, before) }, func() any { return m.engine.names() })
	})
}

// TestSparesGrowOld: they are replaced.
func TestSparesGrowOld(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		m.start()
		old := m.awaitSpares(kind, 1)[0]
		m.clock.advance(time.Hour)
		if id := m.running(); id == old { // which also wakes what replaces it
			t.Error("a sandbox has the old network")
		}
		wait.Until(t, "the old network is removed", func() bool { return m.engine.status(container(old)+kind.suffix) == "" }, func() any { return m.engine.names() })
	})
}

// TestSparesAndRuntimeClasses: a runtime other than the engine's default gets a network that was
// made ahead only with a sidecar.
func TestSparesAndRuntimeClasses(t *testing.T) {
	t.Parallel()
	onSpares(t, 1, func(t *testing.T, m *machine, kind spareKind) {
		m.box.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "own-stack", Handler: "runsc"}, {Name: "filtered", Handler: "runc", EgressSidecar: true}}
		m.start()
		for _, class := range m.box.RuntimeClasses {
			spare := m.awaitSpares(kind, 1)[0]
			asked := spec()
			asked.RuntimeClass = class.Name
			sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.await(sandbox.ID, lifecycle.StateRunning)
			if want := class.EgressSidecar && kind.sidecars != nil; (sandbox.ID == spare) != want {
				t.Errorf("%s has the network that was made ahead: %v, want %v", class.Name, !want, want)
			}
		}
	})
}
