package e2b

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/command"
)

func (h *handler) registerProcess(add adder) {
	h.processes = newProcesses(time.Now)
	post := func(name string, handle echo.HandlerFunc) { add(http.MethodPost, "/process.Process/"+name, handle) }
	post("Start", streaming(h, h.startProcess))
	post("Connect", streaming(h, h.connectProcess))
	post("List", unary(h, h.listProcesses))
	post("SendInput", unary(h, h.sendInput))
	post("CloseStdin", unary(h, h.closeStdin))
	post("SendSignal", unary(h, h.sendSignal))
	post("Update", unary(h, h.updateProcess))
	post("StreamInput", func(c echo.Context) error {
		if failed := checkMedia(c.Request(), mediaStream, "Connect-Content-Encoding"); failed != nil {
			return sendFailure(c, failed)
		}
		return newStream(c).end(failf(codeUnimplemented, "StreamInput is not supported: use SendInput"))
	})
}

// connectProcess follows a process from now on. The client's Connect-Timeout-Ms is that of the
// stream here.
func (h *handler) connectProcess(_ context.Context, c echo.Context, in *processRequest, out *stream) error {
	r := c.Request()
	ctx := r.Context()
	limit, failed := timeout(r)
	if failed != nil {
		return failed
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	p, failed := h.processes.find(in.Process)
	if failed != nil {
		return failed
	}
	o := newOutput(out, keepAlive(r))
	switch {
	case p.end != nil:
		if err := o.start(p.pid); err != nil {
			return err
		}
		return o.end(*p.end)
	case p.terminal != nil:
		viewer := p.terminal.Follow(true)
		defer viewer.Close()
		if err := o.start(p.pid); err != nil {
			return err
		}
		if err := o.followTerminal(ctx, viewer); err != nil {
			return err
		}
		return h.sendEnd(o, endOfTerminal(p.terminal.Status()))
	}
	reader := p.command.Log().Tail()
	if err := o.start(p.pid); err != nil {
		reader.Close()
		return err
	}
	if err := o.followCommand(ctx, reader); err != nil {
		return err
	}
	return h.sendEnd(o, endOfCommand(p.command.Status()))
}

func (h *handler) listProcesses(echo.Context, *empty) (*listResponse, error) {
	return &listResponse{Processes: h.processes.list()}, nil
}

// findRunning returns the process that a client names, if it runs.
func (h *handler) findRunning(by selector) (process, *failure) {
	p, failed := h.processes.find(by)
	if failed == nil && !p.running() {
		return process{}, failf(codeNotFound, "process with pid %d not found: it has ended", p.pid)
	}
	return p, failed
}

func (h *handler) sendInput(c echo.Context, in *inputRequest) (*empty, error) {
	p, failed := h.findRunning(in.Process)
	if failed != nil {
		return nil, failed
	}
	ctx := c.Request().Context()
	var err error
	switch {
	case in.Input.Stdin == nil && in.Input.PTY == nil:
		return nil, failf(codeInvalidArgument, "input: must have stdin or pty")
	case in.Input.Stdin != nil && p.terminal != nil:
		return nil, failf(codeInternal, "error writing to stdin: the process has a terminal, whose input is pty")
	case in.Input.PTY != nil && p.terminal == nil:
		return nil, failf(codeInternal, "error writing to tty: the process has no terminal, its input is stdin")
	case p.terminal != nil:
		err = p.terminal.Type(ctx, *in.Input.PTY)
	default:
		err = p.command.AppendInput(ctx, *in.Input.Stdin)
	}
	if errors.Is(err, command.ErrConflict) {
		return nil, failf(codeInternal, "error writing to stdin: stdin not enabled or closed: %v", err)
	}
	return &empty{}, err
}

func (h *handler) closeStdin(c echo.Context, in *processRequest) (*empty, error) {
	p, failed := h.findRunning(in.Process)
	if failed != nil {
		return nil, failed
	}
	if p.terminal != nil {
		return nil, failf(codeInternal, "error closing stdin: the process has a terminal: send the byte 4 (Ctrl+D) as pty")
	}
	err := p.command.CloseInput(c.Request().Context())
	if errors.Is(err, command.ErrConflict) {
		return nil, failf(codeInternal, "error closing stdin: stdin not enabled: %v", err)
	}
	return &empty{}, err
}

func (h *handler) sendSignal(_ echo.Context, in *signalRequest) (*empty, error) {
	signal, known := signals[in.Signal]
	if !known {
		return nil, failf(codeUnimplemented, "signal %.64q: must be SIGNAL_SIGTERM or SIGNAL_SIGKILL", string(in.Signal))
	}
	leave, err := h.Freezer.Enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	p, failed := h.processes.find(in.Process)
	if failed != nil {
		return nil, failed
	}
	if !p.signal(signal) {
		return nil, failf(codeNotFound, "process with pid %d not found: it has ended", p.pid)
	}
	return &empty{}, nil
}

func (h *handler) updateProcess(_ echo.Context, in *updateRequest) (*empty, error) {
	p, failed := h.findRunning(in.Process)
	switch {
	case failed != nil:
		return nil, failed
	case in.PTY == nil:
		return &empty{}, nil
	case p.terminal == nil:
		return nil, failf(codeInternal, "error resizing tty: the process has no terminal")
	}
	rows, cols, failed := in.PTY.size()
	if failed != nil {
		return nil, failed
	}
	return &empty{}, p.terminal.Resize(rows, cols)
}
