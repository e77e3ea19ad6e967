package e2b

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/terminal"
	environment "sandbox.internal/internal/process"
	"sandbox.internal/openapi/serve"
)

// startProcess starts a process, which lives until it ends, is killed, or has used up the client's
// Connect-Timeout-Ms, whether there is a client or not.
func (h *handler) startProcess(_ context.Context, c echo.Context, in *startRequest, out *stream) error {
	r := c.Request()
	as, failed := accountOf(r, "")
	if failed != nil {
		return failed
	}
	limit, failed := timeout(r)
	if failed != nil {
		return failed
	}
	s, failed := h.processes.reserve(in.Process, in.Tag)
	if failed != nil {
		return failed
	}
	var started process
	var err error
	if in.PTY == nil {
		started.command, err = h.startCommand(r, as, in, limit, s)
	} else {
		started.terminal, err = h.startTerminal(r, as, in, limit, s)
	}
	if err != nil {
		h.processes.release(s)
		return err
	}
	o := newOutput(out, keepAlive(r))
	if started.command != nil {
		started.pid = started.command.PID()
		h.processes.add(s, started)
		reader, err := started.command.Log().Reader(0)
		if err != nil {
			return err
		}
		if err := o.start(started.pid); err != nil {
			return err
		}
		if err := o.followCommand(r.Context(), reader); err != nil {
			return err
		}
		status := started.command.Status()
		if status.TimedOut {
			return failf(codeDeadlineExceeded, "the process was killed: its time (Connect-Timeout-Ms) of %v is over", limit)
		}
		return h.sendEnd(o, endOfCommand(status))
	}
	started.pid = started.terminal.PID()
	viewer := started.terminal.Follow(false)
	defer viewer.Close()
	h.processes.add(s, started)
	if err := o.start(started.pid); err != nil {
		return err
	}
	if err := o.followTerminal(r.Context(), viewer); err != nil {
		return err
	}
	status := started.terminal.Status()
	if status.TimedOut {
		return failf(codeDeadlineExceeded, "the process was killed: its time (Connect-Timeout-Ms) of %v is over", limit)
	}
	return h.sendEnd(o, endOfTerminal(status))
}

// sendEnd sends the end of a process. That of one which has failed while the sandbox ends is the
// sandbox's end, for which clients have an error of their own.
func (h *handler) sendEnd(o *output, end endEvent) error {
	if end.Error != "" && h.Stopping() {
		return failf(codeUnavailable, "the sandbox is ending")
	}
	return o.end(end)
}

// startCommand starts a process whose output goes to pipes.
func (h *handler) startCommand(r *http.Request, as account, in *startRequest, limit time.Duration, s *started) (*command.Command, error) {
	leave, err := h.Freezer.Enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	record := h.record(r, activity.Command)
	started, err := h.Commands.Start(command.Spec{
		Argv: append([]string{in.Process.Cmd}, in.Process.Args...),
		Dir:  as.workingDirectory(in.Process.Cwd), Env: h.variables(r, as, in.Process.Envs), UID: &as.UID, GID: &as.GID,
		Timeout: limit, Abrupt: true, Input: in.Stdin == nil || *in.Stdin,
		Ended: func(status command.Status) {
			record.End(activity.Result{Failed: status.Error != "", Exit: status.ExitCode, Error: status.Error})
			h.processes.finish(s, endOfCommand(status))
		},
	})
	if err != nil {
		return nil, err
	}
	serve.LogField(r.Context(), "command_id", started.ID())
	record.Begin(started.ID(), in.Process.text(started.Status().Content))
	return started, nil
}

// startTerminal starts a process on a terminal.
func (h *handler) startTerminal(r *http.Request, as account, in *startRequest, limit time.Duration, s *started) (*terminal.Terminal, error) {
	if in.Process.Cmd == "" { // which the engine takes for a shell
		return nil, failf(codeInvalidArgument, "cmd: must not be empty")
	}
	rows, cols, failed := in.PTY.size()
	if failed != nil {
		return nil, failed
	}
	leave, err := h.Freezer.Enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	record := h.record(r, activity.Terminal)
	started, err := h.Terminals.Start(terminal.Spec{
		Command: in.Process.Cmd, Args: in.Process.Args, Rows: rows, Cols: cols,
		Dir: as.workingDirectory(in.Process.Cwd), Env: h.variables(r, as, in.Process.Envs), UID: &as.UID, GID: &as.GID,
		Timeout: limit, Abrupt: true,
		Ended: func(status terminal.Status) {
			end := endOfTerminal(status)
			record.End(activity.Result{Failed: end.Error != "", Exit: status.ExitCode, Error: end.Error})
			h.processes.finish(s, end)
		},
	})
	if err != nil {
		return nil, err
	}
	serve.LogField(r.Context(), "terminal_id", started.ID())
	record.Begin(started.ID(), in.Process.text(strings.Join(started.Status().Command, " ")))
	return started, nil
}

// workingDirectory returns the absolute path of the directory that a process starts in.
func (a account) workingDirectory(given string) string {
	if given == "" {
		return a.directory
	}
	return a.path(given)
}

// variables are what a process has besides the variables of the sandbox, which the engines add:
// those that name the user, whose values among the sandbox's are execd's own, those by which a
// process knows that it is in a sandbox of E2B, and those of the request.
func (h *handler) variables(r *http.Request, as account, given map[string]string) map[string]string {
	variables := map[string]string{
		"PATH": environment.Path(h.Env), "HOME": as.Home, "USER": as.Name, "LOGNAME": as.Name, "E2B_SANDBOX": "true",
	}
	for name, header := range map[string]string{"E2B_SANDBOX_ID": SandboxHeader, "E2B_TEMPLATE_ID": TemplateHeader} {
		if id, err := url.PathUnescape(r.Header.Get(header)); err == nil && id != "" {
			variables[name] = id
		}
	}
	maps.Copy(variables, given)
	return variables
}
