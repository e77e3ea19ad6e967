package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// matches applies a filter to a sandbox that was read by its id.
func matches(o sandbox.ListOptions, s sandbox.Info) bool {
	for key, value := range o.Metadata {
		if s.Metadata[key] != value {
			return false
		}
	}
	return len(o.States) == 0 || slices.ContainsFunc(o.States, func(state string) bool {
		return strings.EqualFold(state, s.Status.State)
	})
}

// watcher prints a list of sandboxes, and then each that changes.
type watcher struct {
	t       *tool
	options sandbox.ListOptions
	keep    func(sandbox.Info) bool
	rows    *show.Rows[sandbox.Info]
	shown   map[string]sandbox.Info
}

func (t *tool) watchList(ctx context.Context, options sandbox.ListOptions,
	keep func(sandbox.Info) bool) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	w := &watcher{t: t, options: options, keep: keep, rows: show.NewRows(t.Printer, t.sandboxView()),
		shown: map[string]sandbox.Info{}}
	// The list is read when the stream is open, so that nothing is missed between the two.
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow := &sandbox.EventOptions{OnOpen: func() {
		if failed = w.list(ctx); failed != nil {
			cancel()
		}
	}}
	for event, err := range c.client.Events(ctx, follow) {
		switch {
		case failed != nil:
			return failed
		case err != nil:
			return err
		case event.Type == sandbox.EventReset:
			err = w.list(ctx)
		case changes(event) && event.SandboxID != nil:
			err = w.changed(ctx, *event.SandboxID)
		}
		if err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	return context.Cause(ctx)
}

// list prints what is not shown yet, the newest last.
func (w *watcher) list(ctx context.Context) error {
	list, err := w.t.list(ctx, w.options, w.keep)
	if err != nil {
		return err
	}
	for _, info := range slices.Backward(list) {
		if err := w.show(info); err != nil {
			return err
		}
	}
	return nil
}

// changed prints a sandbox to which something happened, also when it has ended since it was shown.
func (w *watcher) changed(ctx context.Context, id string) error {
	c, err := w.t.connect()
	if err != nil {
		return err
	}
	info, err := c.client.Get(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil // its record is gone already
	}
	if err != nil {
		return err
	}
	if _, known := w.shown[id]; !known && (!w.keep(info) || !matches(w.options, info)) {
		return nil
	}
	return w.show(info)
}

func (w *watcher) show(info sandbox.Info) error {
	if before, known := w.shown[info.ID]; known && same(before, info) {
		return nil
	}
	w.shown[info.ID] = info
	return w.rows.Print(info)
}
