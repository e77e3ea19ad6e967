package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Guards asks egress sidecars: what the service knows of openapi/egress.yaml. Errors that a client may be told are of type
// *lifecycle.Error.
type Guards interface {
	// Environment returns the variables that start a sidecar with the policy; whole is false when it must be told the policy afterwards,
	// and lets nothing pass until then.
	Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (env map[string]string, whole bool, err error)
	// Health returns how often the guard was started again. An error means that the wall is not known to stand.
	Health(ctx context.Context, at lifecycle.Sidecar) (restarts int, err error)
	Policy(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Change(ctx context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error)
	Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Decisions(ctx context.Context, at lifecycle.Sidecar, request lifecycle.DecisionsRequest) (io.ReadCloser, error)
}

const (
	// labelSidecar is on the container of an egress sidecar, beside the labels of its sandbox.
	labelSidecar = lifecycle.LabelPrefix + "sidecar"
	// guardInterval is how often running sidecars are asked how they are.
	guardInterval = 5 * time.Second
	// concurrentQuestions bounds how many sidecars are asked at once.
	concurrentQuestions = 16
)

// Limits of a sidecar's container. Its guard needs a third of the memory.
const (
	sidecarMemory = 64 << 20
	sidecarPIDs   = 128
	sidecarCPU    = 1e9
)

func sidecarName(id string) string { return containerName(id) + "-egress" }

func isSidecar(container engine.Container) bool { return container.Labels[labelSidecar] != "" }

// newSidecar returns the sidecar for a new sandbox, nil when it gets none.
func (h *Host) newSidecar() (*lifecycle.Sidecar, error) {
	if h.HostNetwork || h.EgressImage == "" {
		return nil, nil
	}
	secret, err := newToken()
	if err != nil {
		return nil, err
	}
	return &lifecycle.Sidecar{Image: h.EgressImage, Upstream: h.EgressUpstream, Token: secret}, nil
}

// wallIn leaves the sandbox's container no way around its sidecar: the sidecar's network, and neither of the capabilities that could
// change it or forge what the filter goes by ("Networking rules", 4).
func wallIn(id string, spec *engine.ContainerSpec) {
	spec.Network = engine.NetworkOf(sidecarName(id))
	for _, capability := range []string{"NET_ADMIN", "NET_RAW"} {
		if !slices.Contains(spec.Security.DropCapabilities, capability) {
			spec.Security.DropCapabilities = slices.Concat(spec.Security.DropCapabilities, []string{capability})
		}
	}
}

// launchSidecar starts the sidecar and returns when its wall stands. One of an earlier try is of no use: it may be in any state.
func (a *actor) launchSidecar(ctx context.Context, record lifecycle.Record) error {
	name := sidecarName(a.id)
	if err := a.host.Engine.Remove(ctx, name); err != nil {
		return err
	}
	imageID, err := a.host.Engine.EnsureImage(ctx, record.Sidecar.Image, nil, nil)
	if err != nil {
		return fmt.Errorf("the egress sidecar: %w", err)
	}
	env, whole, err := a.host.Guards.Environment(*record.Sidecar, record.Spec.NetworkPolicy)
	if err != nil {
		return err
	}
	a.tell(lifecycle.ReasonContainerStarting, "the egress sidecar is being started")
	unbroken := a.host.ctx // as for the sandbox's container
	_, err = a.host.Engine.Create(unbroken, a.host.sidecarSpec(a.id, imageID, env))
	if err == nil || errors.Is(err, engine.ErrExists) {
		err = a.host.Engine.Start(unbroken, name)
	}
	if err != nil {
		return fmt.Errorf("the egress sidecar: %w", err)
	}
	sidecar, err := a.awaitWall(ctx, *record.Sidecar)
	if err != nil || whole {
		return err
	}
	_, err = a.host.Guards.Change(ctx, sidecar, lifecycle.PolicyChange{Replace: record.Spec.NetworkPolicy})
	return err
}

func (h *Host) sidecarSpec(id, imageID string, env map[string]string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name:      sidecarName(id),
		ImageID:   imageID,
		Labels:    map[string]string{labelID: id, labelInstance: h.Instance, labelSidecar: "egress"},
		Env:       env,
		Publish:   []int{daemonPort, lifecycle.SidecarPort},
		PublishIP: h.PublishIP,
		Resources: engine.Resources{NanoCPUs: sidecarCPU, MemoryBytes: sidecarMemory, PIDs: sidecarPIDs},
		Security: engine.Security{
			DropCapabilities: []string{"ALL"},
			AddCapabilities:  []string{"NET_ADMIN"},
			NoNewPrivileges:  true,
		},
		Sysctls: map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"},
	}
}

// awaitWall waits until the sidecar says that its wall stands, and returns where it is reached.
func (a *actor) awaitWall(ctx context.Context, sidecar lifecycle.Sidecar) (lifecycle.Sidecar, error) {
	deadline := a.host.Clock().Add(readyTimeout)
	var lastErr error
	for pause := time.Millisecond; a.host.Clock().Before(deadline); pause = min(pause*5/4, 100*time.Millisecond) {
		container, err := a.sidecar(ctx)
		if err != nil {
			return sidecar, err
		}
		sidecar.Port = container.Ports[lifecycle.SidecarPort]
		if _, lastErr = a.host.Guards.Health(ctx, sidecar); lastErr == nil {
			return sidecar, nil
		}
		if !sleep(ctx, pause) {
			return sidecar, ctx.Err()
		}
	}
	return sidecar, &provisionError{reason: lifecycle.ReasonProvisionTimeout,
		text: fmt.Sprintf("the egress sidecar did not answer within %v: %v%s", readyTimeout, lastErr, a.lastLinesOf(ctx, sidecarName(a.id)))}
}

// sidecar returns the sidecar's container. One that has ended is an error that tells how: its network has ended with it, so its
// sandbox is cut off for good. One that somebody else froze is thawed.
func (a *actor) sidecar(ctx context.Context) (engine.Container, error) {
	name := sidecarName(a.id)
	container, err := a.host.Engine.Inspect(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotFound), err == nil && container.Status == engine.StatusRemoving:
		return container, &provisionError{reason: lifecycle.ReasonNetworkError,
			text: "the egress sidecar was removed by somebody else; the sandbox's network has ended with it"}
	case err != nil:
		return container, err
	case container.Status == engine.StatusFrozen:
		return container, a.host.Engine.Thaw(ctx, name)
	case container.Status != engine.StatusRunning:
		return container, &provisionError{reason: lifecycle.ReasonNetworkError,
			text: fmt.Sprintf("the egress sidecar ended with exit code %d; the sandbox's network has ended with it%s", container.ExitCode, a.lastLinesOf(ctx, name))}
	}
	return container, nil
}

// found returns the sandbox's container. With a sidecar, the ports are those that the sidecar publishes for it.
func (a *actor) found(ctx context.Context, record *lifecycle.Record) (engine.Container, error) {
	container, err := a.host.Engine.Inspect(ctx, containerName(a.id))
	alive := container.Status == engine.StatusRunning || container.Status == engine.StatusFrozen
	if err != nil || record.Sidecar == nil || !alive {
		return container, err
	}
	sidecar, err := a.sidecar(ctx)
	if err == nil {
		container.Ports = sidecar.Ports
	}
	return container, err
}

// meet takes up what the sidecar says: where it is, how it is and which policy is in force there. It has the last word on the policy,
// because a change reaches it before the record.
func (a *actor) meet(ctx context.Context, record *lifecycle.Record, container engine.Container) error {
	if record.Sidecar == nil {
		return nil
	}
	sidecar := *record.Sidecar
	sidecar.Port = container.Ports[lifecycle.SidecarPort]
	restarts, err := a.host.Guards.Health(ctx, sidecar)
	if err != nil {
		return err
	}
	// A change in between would otherwise be undone in the record.
	a.policy.Lock()
	defer a.policy.Unlock()
	policy, err := a.host.Guards.Policy(ctx, sidecar)
	if err != nil {
		return err
	}
	a.post(func() {
		record := a.record
		now := *record.Sidecar
		now.Port = sidecar.Port
		changed := now != *record.Sidecar || !reflect.DeepEqual(record.Spec.NetworkPolicy, &policy)
		record.Sidecar, record.Spec.NetworkPolicy = &now, &policy
		switch {
		case a.state() == lifecycle.StatePending: // it becomes durable with the next state, which is news enough
			now.Restarts, now.Silent = restarts, false
			a.show(record)
			return
		case changed:
			a.adopt(record)
		}
		a.guardSays(restarts)
	})
	return nil
}

// dropSidecar removes the sidecar's container.
func (a *actor) dropSidecar(ctx context.Context, record lifecycle.Record) error {
	if record.Sidecar == nil {
		return nil
	}
	return a.insist(ctx, "remove the egress sidecar", func(ctx context.Context) error { return a.host.Engine.Remove(ctx, sidecarName(a.id)) })
}

// watchGuards asks the sidecars of living sandboxes how they are, for as long as the host runs.
func (h *Host) watchGuards() {
	defer h.tasks.Done()
	missed := map[*actor]bool{}
	for sleep(h.ctx, guardInterval) {
		missed = h.askGuards(missed)
	}
}

// askGuards asks each sidecar once, and returns those that did not answer. One that did not answer before either is said to be silent.
func (h *Host) askGuards(missed map[*actor]bool) map[*actor]bool {
	var (
		mu     sync.Mutex
		group  sync.WaitGroup
		turns  = make(chan struct{}, concurrentQuestions)
		silent = map[*actor]bool{}
	)
	for _, a := range h.registry.all() {
		record := a.now()
		if record.Sidecar == nil || record.Sidecar.Port == 0 || !hasNetwork(record.Sandbox.Status.State) {
			continue
		}
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			restarts, err := h.Guards.Health(h.ctx, *record.Sidecar)
			switch {
			case h.ctx.Err() != nil:
			case err == nil:
				a.post(func() { a.guardSays(restarts) })
			default:
				if missed[a] {
					a.log.Warn().Err(err).Msg("the egress guard does not answer")
					a.post(a.guardIsSilent)
				}
				mu.Lock()
				defer mu.Unlock()
				silent[a] = true
			}
		})
	}
	group.Wait()
	return silent
}

// hasNetwork reports whether the sidecar of a sandbox in that state is there to be asked.
func hasNetwork(state lifecycle.State) bool {
	return state == lifecycle.StateRunning || state == lifecycle.StatePaused
}

func (a *actor) guardIsSilent() {
	if a.record.Sidecar == nil || a.record.Sidecar.Silent || !hasNetwork(a.state()) {
		return
	}
	a.look = true // perhaps its container has ended
	sidecar := *a.record.Sidecar
	sidecar.Silent = true
	a.tellOfGuard(sidecar, lifecycle.ReasonNetworkError, "the egress guard does not answer; while it is down, nothing passes")
}

func (a *actor) guardSays(restarts int) {
	known := a.record.Sidecar
	if known == nil || restarts == known.Restarts && !known.Silent || !hasNetwork(a.state()) {
		return
	}
	sidecar := *known
	sidecar.Restarts, sidecar.Silent = restarts, false
	message := "the egress guard answers again"
	if restarts != known.Restarts {
		message = fmt.Sprintf("the egress guard died and was started again (restarts so far: %d); nothing passed meanwhile", restarts)
	}
	a.tellOfGuard(sidecar, lifecycle.ReasonContainerRunning, message)
}

// tellOfGuard shows in the sandbox's status what became of its guard, and tells of it.
func (a *actor) tellOfGuard(sidecar lifecycle.Sidecar, reason lifecycle.Reason, message string) {
	record := a.record
	record.Sidecar = &sidecar
	if a.state() == lifecycle.StateRunning { // another state has more to say
		record.Sandbox.Status.Reason, record.Sandbox.Status.Message = reason, message
	}
	event := a.event(lifecycle.EventProgress)
	event.Reason, event.Message = reason, message
	a.log.Warn().Int("restarts", sidecar.Restarts).Msg(message)
	a.adopt(record, event)
}
