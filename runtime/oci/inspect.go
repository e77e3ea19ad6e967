package oci

import (
	"context"
	"fmt"
	"io"

	"sandbox.internal/runtime/engine"
)

// Inspect implements [engine.Engine].
func (e *Engine) Inspect(_ context.Context, id string) (engine.Container, error) {
	c, err := e.containers.Find("inspect container", id)
	if err != nil {
		return engine.Container{}, err
	}
	return c.Describe(), nil
}

// List implements [engine.Engine].
func (e *Engine) List(_ context.Context, labels map[string]string) ([]engine.Container, error) {
	return e.containers.List(labels)
}

// Watch implements [engine.Engine]. A caller that is far behind is cut off with
// [engine.ErrUnavailable].
func (e *Engine) Watch(ctx context.Context, labels map[string]string, ready func(), handle func(engine.Event)) error {
	return e.containers.Watch(ctx, labels, ready, handle)
}

// Logs implements [engine.Engine]. The beginning is cut off; bytes that are not UTF-8 are replaced.
func (e *Engine) Logs(_ context.Context, id string, tail int) (string, error) {
	op := "read the log of container " + id
	c, err := e.containers.Find(op, id)
	if err != nil || tail <= 0 {
		return "", err
	}
	text, err := e.logs.Tail(c, tail)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	return text, nil
}

// OpenLog implements [engine.Engine]. Since is exact to a tenth of a second: what was written up to
// that much earlier may be there, too.
func (e *Engine) OpenLog(ctx context.Context, id string, options engine.LogOptions) (io.ReadCloser, error) {
	op := "read the log of container " + id
	c, err := e.containers.Find(op, id)
	if err != nil {
		return nil, err
	}
	stream, err := e.logs.Open(ctx, c, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return stream, nil
}
