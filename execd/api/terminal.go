package api

import (
	"context"
	"strings"
	"time"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/terminal"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
)

func (h *handlers) StartTerminal(ctx context.Context, request gen.StartTerminalRequestObject) (gen.StartTerminalResponseObject, error) {
	r := *request.Body
	timeout, err := toTimeout(r.Timeout)
	if err != nil {
		return nil, err
	}
	key := request.Params.IdempotencyKey
	id, err := h.repeats.once(ctx, "startTerminal", repeat{key, request.Params.IdempotencyAge}, func() (string, error) {
		return h.startTerminal(ctx, r, timeout)
	})
	if err != nil {
		return nil, err
	}
	if _, err := h.terminals.Get(id); err != nil && key != nil { // without a key it was started just now
		return nil, gone(key, err)
	}
	serve.LogField(ctx, "terminal_id", id)
	return gen.StartTerminal200JSONResponse{ID: id}, nil
}

// startTerminal starts a terminal and returns its id.
func (h *handlers) startTerminal(ctx context.Context, r gen.TerminalRequest, timeout time.Duration) (string, error) {
	leave, err := h.freezer.Enter()
	if err != nil {
		return "", err
	}
	defer leave()
	record := h.prepare(ctx, activity.Terminal)
	t, err := h.terminals.Start(terminal.Spec{
		Command: value(r.Command),
		Args:    r.Args,
		Dir:     value(r.Cwd),
		Env:     r.Envs,
		UID:     toID(r.UID),
		GID:     toID(r.GID),
		Timeout: timeout,
		Rows:    uint16(value(r.Rows)), // the contract's limits keep it within 16 bits
		Cols:    uint16(value(r.Cols)),
		Ended:   func(s terminal.Status) { record.End(resultOfTerminal(s)) },
	})
	if err != nil {
		return "", err
	}
	record.Begin(t.ID(), strings.Join(t.Status().Command, " "))
	return t.ID(), nil
}

func (h *handlers) ListTerminals(context.Context, gen.ListTerminalsRequestObject) (gen.ListTerminalsResponseObject, error) {
	terminals := h.terminals.List()
	out := make(gen.ListTerminals200JSONResponse, len(terminals))
	for i, t := range terminals {
		out[i] = toTerminal(t.Status())
	}
	return out, nil
}

func (h *handlers) GetTerminal(_ context.Context, request gen.GetTerminalRequestObject) (gen.GetTerminalResponseObject, error) {
	t, err := h.terminals.Get(request.ID)
	if err != nil {
		return nil, err
	}
	return gen.GetTerminal200JSONResponse(toTerminal(t.Status())), nil
}

func (h *handlers) KillTerminal(_ context.Context, request gen.KillTerminalRequestObject) (gen.KillTerminalResponseObject, error) {
	if err := h.requireThawed(); err != nil {
		return nil, err
	}
	if err := h.terminals.Kill(request.ID); err != nil {
		return nil, err
	}
	return gen.KillTerminal200JSONResponse{}, nil
}

func (h *handlers) AttachTerminal(ctx context.Context, request gen.AttachTerminalRequestObject) (gen.AttachTerminalResponseObject, error) {
	t, err := h.terminals.Get(request.ID)
	if err != nil {
		return nil, err
	}
	return attachment{ctx: ctx, terminal: t}, nil
}

func toTerminal(s terminal.Status) gen.Terminal {
	return gen.Terminal{
		ID:        s.ID,
		Command:   s.Command,
		Running:   s.Running,
		ExitCode:  s.ExitCode,
		Rows:      int(s.Rows),
		Cols:      int(s.Cols),
		Viewers:   s.Viewers,
		CreatedAt: s.CreatedAt.UTC(),
	}
}
