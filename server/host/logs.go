package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sandbox.internal/server/lifecycle"
)

// keptLogLines and keptLogBytes bound the end of an ended sandbox's log that is kept.
const (
	keptLogLines = 1000
	keptLogBytes = 64 << 10
	// keepLogTimeout bounds how long the end of a sandbox waits for its log.
	keepLogTimeout = 10 * time.Second
)

// Logs implements lifecycle.Backend.
func (h *Host) Logs(
	ctx context.Context, id string, options lifecycle.LogOptions, open func() io.Writer,
) error {
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	// The request must not outlive the host.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()

	var out io.Writer
	if options.Follow && a.snapshot().Sandbox.Status.State == lifecycle.StatePending {
		// there is no output yet, and the client should see that the request was accepted
		out = open()
		h.awaitStart(ctx, a)
	}
	log, live, err := h.openLog(ctx, a, options)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if out == nil {
		out = open()
	}
	followed := &lastByte{Writer: out, last: '\n'}
	_, err = io.Copy(followed, log)
	// Of what was there before, a client that wants none of it gets no unfinished line either.
	wanted := options.Tail == nil || *options.Tail > 0 || followed.wrote
	if err == nil && live && options.Follow && followed.last == '\n' && wanted {
		err = h.completeLog(ctx, a, options.Since, out)
	}
	if err != nil {
		return fmt.Errorf("log of sandbox %s: %w", id, err)
	}
	return nil
}

// openLog returns the log of the sandbox's box, or the kept end of it, and whether the box exists.
func (h *Host) openLog(
	ctx context.Context, a *actor, wanted lifecycle.LogOptions,
) (log io.ReadCloser, live bool, err error) {
	log, err = h.options.Boxes.OpenLog(ctx, *a.snapshot(), wanted)
	switch {
	case errors.Is(err, lifecycle.ErrNoBox):
		kept, err := h.keptLog(ctx, a, wanted.Tail)
		return io.NopCloser(bytes.NewReader(kept)), false, err
	case errors.Is(err, lifecycle.ErrBoxUnavailable):
		return nil, false, lifecycle.Unavailable("the container engine")
	}
	return log, err == nil, err
}

// completeLog writes the last line of a log that was followed to its end, if it has no newline and
// was not all written before since: Docker does not always send that line to those who follow. It
// keeps lines in parts of 16 KiB, so that one of more than keptLogBytes is another engine's, which
// has sent all of it.
func (h *Host) completeLog(
	ctx context.Context, a *actor, since time.Time, out io.Writer,
) error {
	last := 1
	log, live, err := h.openLog(ctx, a, lifecycle.LogOptions{Tail: &last, Since: since})
	if err != nil {
		return nil // the box was removed meanwhile, with that line
	}
	defer func() { _ = log.Close() }()
	if !live && !since.IsZero() {
		return nil // the kept end of a log has no times
	}
	line, err := io.ReadAll(io.LimitReader(log, keptLogBytes+1))
	if err != nil || len(line) > keptLogBytes || bytes.HasSuffix(line, []byte("\n")) {
		return nil
	}
	_, err = out.Write(line)
	return err
}

// lastByte keeps the last byte written, and whether there was one.
type lastByte struct {
	io.Writer
	last  byte
	wrote bool
}

func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.last, l.wrote = p[len(p)-1], true
	}
	return l.Writer.Write(p)
}

// awaitStart returns once the sandbox's entrypoint has started, or never will.
func (h *Host) awaitStart(ctx context.Context, a *actor) {
	for ctx.Err() == nil {
		started := func(r *lifecycle.Record) bool {
			_, runs := r.Sandbox.Reached(lifecycle.StageStarted)
			return runs || r.Sandbox.Status.State != lifecycle.StatePending
		}
		record := a.await(ctx, lifecycle.MaxTimeout, started)
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

// keptLog returns the kept end of the log of a sandbox that has no box any more.
func (h *Host) keptLog(ctx context.Context, a *actor, tail *int) ([]byte, error) {
	log, kept, err := h.options.Store.Log(ctx, a.id)
	if err != nil {
		return nil, err
	}
	record := a.snapshot()
	_, started := record.Sandbox.Reached(lifecycle.StageStarted)
	if !kept && (started || record.Port != 0) {
		return nil, lifecycle.Conflictf(
			"the log is lost: the sandbox is %s and its container was removed by another process",
			record.Sandbox.Status.State)
	}
	if tail == nil {
		return log, nil
	}
	return lastLinesOf(log, *tail), nil
}

// lastLinesOf returns the last lines of a text.
func lastLinesOf(text []byte, count int) []byte {
	at := len(text)
	for ; count > 0 && at > 0; count-- {
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1 // the newline before a line's own
	}
	return text[at:]
}

// keepLog saves the end of the log before the container is removed.
func (a *actor) keepLog(ctx context.Context, record lifecycle.Record) {
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, keepLogTimeout)
		defer cancel()
		lines := keptLogLines
		log, err := a.host.options.Boxes.OpenLog(ctx, record, lifecycle.LogOptions{Tail: &lines})
		if errors.Is(err, lifecycle.ErrNoBox) {
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
		return a.host.options.Store.SaveLog(ctx, a.id, last.kept)
	}()
	if err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("cannot save the end of the sandbox's log")
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
