package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Of an ended sandbox's log so much is kept: the last lines, at most so many and so many bytes.
const (
	keptLogLines = 1000
	keptLogBytes = 64 << 10
	// keepLogTimeout bounds how long the end of a sandbox waits for its log.
	keepLogTimeout = 10 * time.Second
)

// Logs implements lifecycle.Backend.
func (h *Host) Logs(ctx context.Context, id string, options lifecycle.LogOptions, open func() io.Writer) error {
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	// What this answer waits for must not outlive the host.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()

	var out io.Writer
	if options.Follow && a.now().Sandbox.Status.State == lifecycle.StatePending {
		out = open() // nothing is printed yet, and the client should know that it is being listened
		h.awaitStart(ctx, a)
	}
	wanted := engine.LogOptions{Tail: -1, Since: options.Since, Follow: options.Follow}
	if options.Tail != nil {
		wanted.Tail = *options.Tail
	}
	log, err := h.Engine.OpenLog(ctx, containerName(id), wanted)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		kept, err := h.keptLog(ctx, a, wanted.Tail)
		if err != nil {
			return err
		}
		log = io.NopCloser(bytes.NewReader(kept))
	case errors.Is(err, engine.ErrUnavailable):
		return &lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "the container engine does not answer", RetryAfter: 1}
	case err != nil:
		return err
	}
	defer func() { _ = log.Close() }()
	if out == nil {
		out = open()
	}
	if _, err := io.Copy(out, log); err != nil {
		return fmt.Errorf("log of sandbox %s: %w", id, err)
	}
	return nil
}

// awaitStart returns when the sandbox's container runs, or never will.
func (h *Host) awaitStart(ctx context.Context, a *actor) {
	for ctx.Err() == nil {
		started := func(r *lifecycle.Record) bool {
			_, runs := r.Sandbox.Reached(lifecycle.StageStarted)
			return runs || r.Sandbox.Status.State != lifecycle.StatePending
		}
		record := h.await(ctx, a, lifecycle.MaxTimeout, started)
		select {
		case <-a.gone:
			return
		default:
			if started(record) {
				return
			}
		}
	}
}

// keptLog returns the end of the log of a sandbox that has no container.
func (h *Host) keptLog(ctx context.Context, a *actor, tail int) ([]byte, error) {
	log, kept, err := h.Store.Log(ctx, a.id)
	if err != nil {
		return nil, err
	}
	record := a.now()
	_, started := record.Sandbox.Reached(lifecycle.StageStarted)
	if !kept && (started || record.Port != 0) {
		return nil, lifecycle.Conflictf("the log is lost: the sandbox is %s and its container was removed by somebody else", record.Sandbox.Status.State)
	}
	return lastLinesOf(log, tail), nil
}

// lastLinesOf returns the last lines of a text, all of them when count is negative.
func lastLinesOf(text []byte, count int) []byte {
	if count < 0 {
		return text
	}
	at := len(text)
	for ; count > 0 && at > 0; count-- {
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1 // the newline before a line's own
	}
	return text[at:]
}

// keepLog saves the end of the log before the container is removed.
func (a *actor) keepLog(ctx context.Context) {
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, keepLogTimeout)
		defer cancel()
		log, err := a.host.Engine.OpenLog(ctx, containerName(a.id), engine.LogOptions{Tail: keptLogLines})
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = log.Close() }()
		var last tail
		if _, err := io.Copy(&last, log); err != nil {
			return err
		}
		return a.host.Store.SaveLog(ctx, a.id, last.kept)
	}()
	if err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("the end of the sandbox's log is not kept")
	}
}

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - keptLogBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}
