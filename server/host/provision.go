package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Labels of our containers. With labelRecord the records can be rebuilt from the engine alone.
const (
	labelID        = lifecycle.LabelPrefix + "id"
	labelInstance  = lifecycle.LabelPrefix + "instance"
	labelExpiresAt = lifecycle.LabelPrefix + "expires-at"
	labelRecord    = lifecycle.LabelPrefix + "record"
)

func containerName(id string) string { return "sandbox-" + id }

// provision is the work of Pending: image, container, start, and the proof that the sandbox is usable.
// A service that was killed half-way begins again; what is of use is taken over, the rest is removed.
func (a *actor) provision(ctx context.Context, record lifecycle.Record) func() {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		port, err := a.bringUp(ctx, record)
		switch failure := (*provisionError)(nil); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return func() {
				if a.state() == lifecycle.StatePending {
					a.record.Port = port
					a.auth = nil
					a.settle(lifecycle.TriggerProvisioned, lifecycle.ReasonContainerRunning, "execd answers")
					if created := a.record.Sandbox.CreatedAt; !created.Before(a.host.since) {
						a.host.Observer.Provisioned(a.host.Clock().Sub(created))
					}
				}
			}
		case errors.Is(err, engine.ErrUnavailable):
			a.log.Warn().Err(err).Dur("retry_in", pause).Msg("provisioning waits for the container engine")
			a.tellWaiting(lifecycle.ReasonEngineUnavailable, "waiting for the container engine: "+err.Error())
			if !sleep(ctx, pause) {
				return nil
			}
		case errors.As(err, &failure) && failure.ended != nil:
			return a.ended(*failure.ended, failure.log)
		default:
			return a.fail(classify(err), err.Error())
		}
	}
}

// provisionError is a failure whose reason is known.
type provisionError struct {
	reason lifecycle.Reason
	text   string
	ended  *engine.Container // the container, when it ended by itself
	log    string
}

func (e *provisionError) Error() string { return e.text }

func classify(err error) lifecycle.Reason {
	var known *provisionError
	switch {
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, engine.ErrImage):
		return lifecycle.ReasonImagePullError
	case errors.Is(err, engine.ErrNetwork):
		return lifecycle.ReasonNetworkError
	case errors.Is(err, engine.ErrNotFound):
		return lifecycle.ReasonRemovedExternally
	}
	return lifecycle.ReasonContainerError
}

// tell shows how provisioning goes on.
func (a *actor) tell(reason lifecycle.Reason, message string) {
	a.post(func() {
		if a.state() == lifecycle.StatePending {
			a.progress(reason, message)
		}
	})
}

// tellWaiting is tell for what may take minutes. Its beginning becomes an event, and then its latest word every few seconds.
func (a *actor) tellWaiting(reason lifecycle.Reason, message string) {
	a.post(func() {
		if a.state() != lifecycle.StatePending {
			return
		}
		a.progress(reason, message)
		event := a.event(lifecycle.EventProgress)
		recent := reason == a.progressed.Reason && event.Time.Sub(a.progressed.LastTransitionAt) < progressInterval
		if recent || len(a.untold) > 0 {
			return
		}
		a.progressed = lifecycle.Status{Reason: reason, LastTransitionAt: event.Time}
		event.Reason, event.Message = reason, message
		a.adopt(a.record, event)
	})
}

// bringUp makes the sandbox usable and returns the host's port of its execd.
func (a *actor) bringUp(ctx context.Context, record lifecycle.Record) (port int, err error) {
	name := containerName(a.id)
	var container engine.Container
	if a.launched {
		container, err = a.host.Engine.Inspect(ctx, name)
	}
	switch {
	case !a.launched, errors.Is(err, engine.ErrNotFound):
		err = a.launch(ctx, record)
	case err == nil && (container.Status == engine.StatusCreated || container.Status == engine.StatusRemoving):
		if err = a.host.Engine.Remove(ctx, name); err == nil {
			err = a.launch(ctx, record)
		}
	case err == nil && container.Status == engine.StatusFrozen:
		err = a.host.Engine.Thaw(ctx, name)
	}
	if err != nil {
		return 0, err
	}
	return a.prove(ctx, record)
}

// launch creates and starts the container.
func (a *actor) launch(ctx context.Context, record lifecycle.Record) error {
	if err := a.fitsHost(record.Spec); err != nil {
		return err
	}
	imageID, err := a.image(ctx, record)
	if err != nil {
		return err
	}
	a.reach(lifecycle.StagePulled)
	select {
	case a.host.starts <- struct{}{}:
		defer func() { <-a.host.starts }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if record.HostNetwork {
		if err := a.awaitSlot(ctx); err != nil {
			return err
		}
	}
	a.launched = true
	if record.Sidecar != nil {
		if err := a.launchSidecar(ctx, record); err != nil {
			return err
		}
	}
	volume, err := a.host.daemonVolume(ctx)
	if err != nil {
		return fmt.Errorf("make execd available: %w", err)
	}
	spec, err := a.host.containerSpec(record, imageID, volume)
	if err != nil {
		return err
	}
	if err := a.host.ownVolumes(ctx, record); err != nil {
		return err
	}
	release, err := a.host.pinAll(record, spec.Mounts)
	if err != nil {
		return err
	}
	defer release()
	a.tell(lifecycle.ReasonContainerStarting, "the container is being started")
	// These two calls are seen through even when the sandbox is deleted meanwhile: only then is it known what there is to remove.
	// When the service stops they are broken off: the next start finds out what came of them.
	unbroken := a.host.ctx
	_, err = a.host.Engine.Create(unbroken, spec)
	if err == nil || errors.Is(err, engine.ErrExists) {
		a.reach(lifecycle.StageCreated)
		err = a.host.Engine.Start(unbroken, spec.Name)
	}
	if err != nil {
		a.host.distrustVolume()
	} else {
		a.reach(lifecycle.StageStarted)
	}
	if errors.Is(err, engine.ErrInvalid) && spec.Resources.GPUs > 0 {
		return &provisionError{reason: lifecycle.ReasonResourceLimit, text: fmt.Sprintf("resourceLimits.gpu: %d: %v", spec.Resources.GPUs, err)}
	}
	if err != nil {
		return err
	}
	return a.host.unmoved(record.Spec.Volumes, spec.Mounts)
}

// fitsHost refuses what the engine's host does not have.
func (a *actor) fitsHost(spec lifecycle.Spec) error {
	limits, err := spec.Resources.Parse()
	if err != nil {
		return err
	}
	if cores := int64(a.host.info.CPUs); limits.NanoCPUs > cores*1e9 {
		return &provisionError{reason: lifecycle.ReasonResourceLimit, text: fmt.Sprintf("resourceLimits.cpu: %s is more than the host's %d cores", spec.Resources["cpu"], cores)}
	}
	if memory := a.host.info.MemoryBytes; limits.MemoryBytes > memory {
		return &provisionError{reason: lifecycle.ReasonResourceLimit, text: fmt.Sprintf("resourceLimits.memory: %s is more than the host's %d MiB", spec.Resources["memory"], memory>>20)}
	}
	return nil
}

func (a *actor) image(ctx context.Context, record lifecycle.Record) (string, error) {
	var auth *engine.RegistryAuth
	if a.auth != nil {
		auth = &engine.RegistryAuth{Username: a.auth.Username, Password: a.auth.Password}
	}
	imageID, err := a.host.Engine.EnsureImage(ctx, record.Sandbox.Image, auth, func(progress string) {
		a.tellWaiting(lifecycle.ReasonImagePulling, progress)
	})
	if errors.Is(err, engine.ErrImage) && record.NeedsAuth && auth == nil {
		return "", fmt.Errorf("%w (the service restarted during the pull, and credentials are not stored: create the sandbox again)", err)
	}
	return imageID, err
}

// prove returns the host's port of execd once execd has answered there.
func (a *actor) prove(ctx context.Context, record lifecycle.Record) (int, error) {
	a.tell(lifecycle.ReasonContainerStarting, "waiting for execd to answer")
	began, deadline := time.Now(), a.host.Clock().Add(readyTimeout)
	var lastErr error
	var foreign time.Time // since when something else answers; zero when nothing does
	for pause := time.Millisecond; a.host.Clock().Before(deadline); pause = min(pause*5/4, 100*time.Millisecond) {
		container, err := a.found(ctx, &record)
		if errors.Is(err, engine.ErrNotFound) || err == nil && container.Status == engine.StatusRemoving {
			return 0, &provisionError{reason: lifecycle.ReasonRemovedExternally, text: removedExternally}
		}
		if err != nil {
			return 0, err
		}
		if container.Status == engine.StatusExited {
			return 0, &provisionError{ended: &container, log: a.lastLines(ctx), text: "the entrypoint ended"}
		}
		if container.Status == engine.StatusFrozen { // by somebody else: nothing answers in there
			if err := a.host.Engine.Thaw(ctx, containerName(a.id)); err != nil && !missing(err) {
				return 0, err
			}
		}
		port := 0
		if port, lastErr = a.answers(ctx, &record, container, began); lastErr == nil {
			return port, nil
		}
		switch now := a.host.Clock(); {
		case !errors.Is(lastErr, errNotDaemon):
			foreign = time.Time{}
		case foreign.IsZero():
			foreign = now
		case now.Sub(foreign) >= foreignPatience:
			return 0, replaced(lastErr)
		}
		if !sleep(ctx, pause) {
			return 0, ctx.Err()
		}
	}
	if errors.Is(lastErr, errNotDaemon) {
		return 0, replaced(lastErr)
	}
	return 0, &provisionError{
		reason: lifecycle.ReasonProvisionTimeout,
		text:   fmt.Sprintf("execd did not answer within %v: %v%s", readyTimeout, lastErr, a.lastLines(ctx)),
	}
}

func replaced(err error) error {
	return &provisionError{reason: lifecycle.ReasonDaemonReplaced,
		text: err.Error() + ": another program has taken the port, or runtime.execd_image is older than the service"}
}

func (h *Host) containerSpec(record lifecycle.Record, imageID, volume string) (engine.ContainerSpec, error) {
	limits, err := record.Spec.Resources.Parse()
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	remembered, err := json.Marshal(record)
	if err != nil {
		return engine.ContainerSpec{}, fmt.Errorf("encode the record: %w", err)
	}
	env := map[string]string{"EXECD_ACCESS_TOKEN": record.Token}
	for name, value := range record.Spec.Env {
		env[name] = value
	}
	mounts := []engine.Mount{{Volume: volume, Target: lifecycle.DaemonPath, ReadOnly: true}}
	for i, v := range record.Spec.Volumes {
		mount, err := h.mount(i, v)
		if err != nil {
			return engine.ContainerSpec{}, err
		}
		mounts = append(mounts, mount)
	}
	spec := engine.ContainerSpec{
		Name:    containerName(record.Sandbox.ID),
		ImageID: imageID,
		Labels: map[string]string{
			labelID:        record.Sandbox.ID,
			labelInstance:  h.Instance,
			labelExpiresAt: record.Sandbox.ExpiresAt.Format(time.RFC3339),
			labelRecord:    string(remembered),
		},
		Env:    env,
		Mounts: mounts,
		Resources: engine.Resources{
			NanoCPUs:    limits.NanoCPUs,
			MemoryBytes: limits.MemoryBytes,
			PIDs:        h.PIDsLimit,
			GPUs:        limits.GPUs,
		},
		Security: h.Security,
	}
	flags, err := h.connect(record, &spec)
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	// The daemon's own log would bury the entrypoint's in the container's log: only warnings go there.
	command := append([]string{filepath.Join(lifecycle.DaemonPath, "execd-init"), "--log-level=4"}, flags...)
	spec.Entrypoint = slices.Concat(command, []string{"--"}, record.Spec.Entrypoint)
	return spec, nil
}
