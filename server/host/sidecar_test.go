package host_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// sidecars are egress sidecars in memory: one policy, one health.
type sidecars struct {
	mu       sync.Mutex
	policy   lifecycle.NetworkPolicy
	restarts int
	err      error
}

var _ host.Sidecars = (*sidecars)(nil)

func (g *sidecars) Environment(_ lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (map[string]string, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if policy != nil {
		g.policy = *policy
	}
	return map[string]string{"EGRESS_POLICY": "x"}, true, nil
}

func (g *sidecars) Health(context.Context, lifecycle.Sidecar) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.restarts, g.err
}

func (g *sidecars) Policy(context.Context, lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.policy.Clone(), g.err
}

func (g *sidecars) Change(_ context.Context, _ lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.policy = *change.Replace
	}
	return g.policy, g.err
}

func (g *sidecars) Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	return g.Policy(ctx, at)
}

func (g *sidecars) Decisions(context.Context, lifecycle.Sidecar, lifecycle.DecisionsRequest) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("{}")), nil
}

func (g *sidecars) become(restarts int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.restarts, g.err = restarts, err
}

func sidecar(id string) string { return container(id) + "-egress" }

func withSidecars(t *testing.T) (*machine, *sidecars) {
	m, g := newMachine(t), &sidecars{}
	m.box.EgressImage, m.box.Sidecars, m.options.Sidecars = "egress", g, g
	return m.start(), g
}

func TestSidecarLivesAndEndsWithItsSandbox(t *testing.T) {
	m, _ := withSidecars(t)
	id := m.running()
	if got := m.engine.status(sidecar(id)); got != engine.StatusRunning {
		t.Fatalf("the sidecar is %q", got)
	}
	if err := m.host.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StatePaused)
	if got := m.engine.status(sidecar(id)); got != engine.StatusRunning {
		t.Errorf("the sidecar of a paused sandbox is %q", got)
	}
	location, err := m.host.Locate(t.Context(), id, lifecycle.SidecarPort)
	endpoint := location.Endpoint
	if err != nil || endpoint.Path != "" || endpoint.Headers["X-EGRESS-ACCESS-TOKEN"] == "" || len(endpoint.Headers) != 1 {
		t.Errorf("endpoint of the sidecar: %+v, %v", endpoint, err)
	}
	if location.Daemon != "" || location.Token != "" {
		t.Errorf("the sidecar through the sandbox: %+v", location)
	}
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	if left := m.engine.names(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestSidecarThatEnds(t *testing.T) {
	m, _ := withSidecars(t)
	id := m.running()
	m.engine.exit(sidecar(id), 137, false)
	if status := m.await(id, lifecycle.StateFailed); status.Reason != lifecycle.ReasonNetworkError || !strings.Contains(status.Message, "exit code 137") {
		t.Errorf("status: %+v", status)
	}
	wait.Until(t, "the engine has no container left", func() bool { return len(m.engine.names()) == 0 }, func() any { return m.engine.names() })
}

func TestSidecarWithoutSandboxIsRemoved(t *testing.T) {
	m, _ := withSidecars(t)
	id := m.running()
	m.engine.put(engine.Container{Name: sidecar("absent"), Status: engine.StatusRunning, Labels: map[string]string{
		"sandbox.internal/id": "absent", "sandbox.internal/instance": instance, "sandbox.internal/sidecar": "egress",
	}})
	m.host.Sweep()
	if m.engine.status(sidecar("absent")) != "" || m.engine.status(sidecar(id)) != engine.StatusRunning || m.engine.status(container(id)) != engine.StatusRunning {
		t.Errorf("containers: %v", m.engine.names())
	}
}

func TestDaemonOfASidecarThatDies(t *testing.T) {
	m, g := withSidecars(t)
	id := m.running()
	g.become(1, nil)
	missed := m.host.CheckSidecars(nil)
	wait.Until(t, "the status says that the sidecar was started again", func() bool {
		return strings.Contains(m.get(id).Status.Message, "died and was started again (restarts so far: 1)")
	}, func() any { return m.get(id).Status })
	g.become(1, errors.New("no answer"))
	missed = m.host.CheckSidecars(missed)
	if status := m.get(id).Status; status.Reason == lifecycle.ReasonNetworkError {
		t.Errorf("after one question without an answer: %+v", status)
	}
	missed = m.host.CheckSidecars(missed)
	wait.Until(t, "the status says that the sidecar does not answer", func() bool { return m.get(id).Status.Reason == lifecycle.ReasonNetworkError }, func() any { return m.get(id).Status })
	g.become(1, nil)
	_ = m.host.CheckSidecars(missed)
	wait.Until(t, "the status says that the sidecar answers again", func() bool { return strings.Contains(m.get(id).Status.Message, "answers again") }, func() any { return m.get(id).Status })
}

func TestPolicyIsStoredAndApplied(t *testing.T) {
	m, g := withSidecars(t)
	id := m.running()
	policy := lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "a.example"}}}
	if _, err := m.host.ChangeNetworkPolicy(t.Context(), id, lifecycle.PolicyChange{Replace: &policy}); err != nil {
		t.Fatal(err)
	}
	stored := func() *lifecycle.NetworkPolicy {
		records, err := m.store.Load(t.Context())
		if err != nil || len(records) != 1 {
			t.Fatal(records, err)
		}
		return records[0].Spec.NetworkPolicy
	}
	if got := stored(); got == nil || got.DefaultAction != "deny" || len(got.Egress) != 1 {
		t.Errorf("stored: %+v", got)
	}
	g.mu.Lock()
	// as by its own API, or by a service that died before it could write
	g.policy.DefaultAction = "allow"
	g.mu.Unlock()
	m.host.Close()
	m.start()
	wait.Until(t, "the new policy is stored", func() bool { return stored().DefaultAction == "allow" }, func() any { return stored() })

	refused := lifecycle.Invalidf("no")
	g.become(0, refused)
	if _, err := m.host.ChangeNetworkPolicy(t.Context(), id, lifecycle.PolicyChange{Replace: &policy}); kindOf(err) != lifecycle.KindInvalid {
		t.Errorf("a change that the sidecar refuses: %v", err)
	}
	if got := stored(); got.DefaultAction != "allow" {
		t.Errorf("stored after a refusal: %+v", got)
	}
}

func TestWithoutSidecar(t *testing.T) {
	m := newMachine(t)
	m.box.EgressImage, m.box.Sidecars, m.options.Sidecars, m.box.HostNetwork = "egress", &sidecars{}, &sidecars{}, true
	m.start()
	s := spec()
	s.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	if _, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{}); kindOf(err) != lifecycle.KindInvalid || !strings.Contains(err.Error(), "requires bridge mode") {
		t.Errorf("a policy in host mode: %v", err)
	}
	id := m.create()
	if _, err := m.host.NetworkPolicy(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("the policy of a sandbox without a sidecar: %v", err)
	}
}

func TestEgressImageThatCannotBeHad(t *testing.T) {
	m := newMachine(t)
	m.box.EgressImage, m.box.Sidecars, m.options.Sidecars = "egress", &sidecars{}, &sidecars{}
	m.engine.failBefore(callEnsureImage, func(_ context.Context, ref string) error {
		if ref == "egress" {
			return engine.ErrImage
		}
		return nil
	})
	if _, err := m.open(); err == nil || !strings.Contains(err.Error(), `egress.image "egress"`) {
		t.Errorf("start: %v", err)
	}
}
