package metrics

import (
	"context"
	"errors"
	"time"

	"sandbox.internal/runtime/engine"
)

// Engine returns an engine that does what the given one does, and is measured. Watch is not: it
// lasts as long as the service.
func (m *Metrics) Engine(inner engine.Engine) engine.Engine {
	return &measuredEngine{Engine: inner, metrics: m}
}

// measuredEngine passes on what it does not measure.
type measuredEngine struct {
	engine.Engine
	metrics *Metrics
}

func (e *measuredEngine) measure(call string, began time.Time, err error) {
	e.metrics.engineCalls.WithLabelValues(call).Observe(e.metrics.clock().Sub(began).Seconds())
	if err != nil {
		e.metrics.engineErrors.WithLabelValues(call, kindOf(err)).Inc()
	}
}

// kindOf names an engine's error.
func kindOf(err error) string {
	for _, kind := range []struct {
		sentinel error
		name     string
	}{
		{context.Canceled, "canceled"},
		{engine.ErrUnavailable, "unavailable"},
		{engine.ErrNotFound, "not_found"},
		{engine.ErrNotRunning, "not_running"},
		{engine.ErrExists, "exists"},
		{engine.ErrImage, "image"},
		{engine.ErrInvalid, "invalid"},
		{engine.ErrNetwork, "network"},
	} {
		if errors.Is(err, kind.sentinel) {
			return kind.name
		}
	}
	return other
}

func (e *measuredEngine) Info(ctx context.Context) (engine.Info, error) {
	began := e.metrics.clock()
	info, err := e.Engine.Info(ctx)
	e.measure("info", began, err)
	return info, err
}

func (e *measuredEngine) EnsureImage(ctx context.Context, ref string, auth *engine.RegistryAuth,
	progress func(string)) (string, error) {
	key := flightKey{ref: ref, caller: engine.CallerOf(ctx)}
	if auth != nil {
		key.auth = *auth
	}
	began := e.metrics.clock()
	var pull *flight // once there is one: an engine that has the image reports no progress
	id, err := e.Engine.EnsureImage(ctx, ref, auth, func(sentence string) {
		if pull == nil {
			pull = e.metrics.join(key)
		}
		if progress != nil {
			progress(sentence)
		}
	})
	if pull != nil {
		e.metrics.leave(key, pull, err)
	}
	e.measure("ensure_image", began, err)
	return id, err
}

func (e *measuredEngine) FindImage(ctx context.Context, ref string) (engine.Image, error) {
	began := e.metrics.clock()
	found, err := e.Engine.FindImage(ctx, ref)
	e.measure("find_image", began, err)
	return found, err
}

func (e *measuredEngine) ProveAccess(ctx context.Context, ref string,
	auth *engine.RegistryAuth) error {
	began := e.metrics.clock()
	err := e.Engine.ProveAccess(ctx, ref, auth)
	e.measure("prove_access", began, err)
	return err
}

func (e *measuredEngine) EnsureDirectory(ctx context.Context, name, imageID, path string,
	labels map[string]string) error {
	began := e.metrics.clock()
	err := e.Engine.EnsureDirectory(ctx, name, imageID, path, labels)
	e.measure("ensure_directory", began, err)
	return err
}

func (e *measuredEngine) Create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	began := e.metrics.clock()
	id, err := e.Engine.Create(ctx, spec)
	e.measure("create", began, err)
	return id, err
}

func (e *measuredEngine) Start(ctx context.Context, id string) error {
	began := e.metrics.clock()
	err := e.Engine.Start(ctx, id)
	e.measure("start", began, err)
	return err
}

func (e *measuredEngine) Freeze(ctx context.Context, id string) error {
	began := e.metrics.clock()
	err := e.Engine.Freeze(ctx, id)
	e.measure("freeze", began, err)
	return err
}

func (e *measuredEngine) Thaw(ctx context.Context, id string) error {
	began := e.metrics.clock()
	err := e.Engine.Thaw(ctx, id)
	e.measure("thaw", began, err)
	return err
}

func (e *measuredEngine) Stop(ctx context.Context, id string, grace time.Duration) error {
	began := e.metrics.clock()
	err := e.Engine.Stop(ctx, id, grace)
	e.measure("stop", began, err)
	return err
}

func (e *measuredEngine) Remove(ctx context.Context, id string) error {
	began := e.metrics.clock()
	err := e.Engine.Remove(ctx, id)
	e.measure("remove", began, err)
	return err
}

func (e *measuredEngine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	began := e.metrics.clock()
	container, err := e.Engine.Inspect(ctx, id)
	e.measure("inspect", began, err)
	return container, err
}

func (e *measuredEngine) List(ctx context.Context,
	labels map[string]string) ([]engine.Container, error) {
	began := e.metrics.clock()
	containers, err := e.Engine.List(ctx, labels)
	e.measure("list", began, err)
	return containers, err
}

func (e *measuredEngine) Logs(ctx context.Context, id string, tail int) (string, error) {
	began := e.metrics.clock()
	text, err := e.Engine.Logs(ctx, id, tail)
	e.measure("logs", began, err)
	return text, err
}
