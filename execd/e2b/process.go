package e2b

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/terminal"
	environment "sandbox.internal/internal/process"
	"sandbox.internal/openapi/serve"
)

// The messages of process.Process. Fields that are absent have their default.
type (
	processConfig struct {
		Cmd  string            `json:"cmd,omitempty"`
		Args []string          `json:"args,omitempty"`
		Envs map[string]string `json:"envs,omitempty"`
		Cwd  string            `json:"cwd,omitempty"`
	}
	ptyConfig struct {
		Size struct {
			Cols number `json:"cols"`
			Rows number `json:"rows"`
		} `json:"size"`
	}
	startRequest struct {
		Process processConfig `json:"process"`
		PTY     *ptyConfig    `json:"pty"`
		Tag     string        `json:"tag"`
		Stdin   *bool         `json:"stdin"` // absent means true, as before there was the field
	}
	selector struct {
		PID *number `json:"pid"`
		Tag *string `json:"tag"`
	}
	processRequest struct {
		Process selector `json:"process"`
	}
	inputRequest struct {
		processRequest
		Input struct {
			Stdin *blob `json:"stdin"`
			PTY   *blob `json:"pty"`
		} `json:"input"`
	}
	signalRequest struct {
		processRequest
		Signal signal `json:"signal"`
	}
	updateRequest struct {
		processRequest
		PTY *ptyConfig `json:"pty"`
	}
	processInfo struct {
		Config processConfig `json:"config"`
		PID    int           `json:"pid"`
		Tag    string        `json:"tag,omitempty"`
	}
	listResponse struct {
		Processes []processInfo `json:"processes,omitempty"`
	}
)

// The messages of a stream of process.Process, but for data: see output.
type (
	processEvent struct {
		Start     *startEvent `json:"start,omitempty"`
		End       *endEvent   `json:"end,omitempty"`
		KeepAlive *empty      `json:"keepalive,omitempty"`
	}
	eventMessage struct {
		Event processEvent `json:"event"`
	}
	startEvent struct {
		PID int `json:"pid"`
	}
	endEvent struct {
		ExitCode int    `json:"exitCode,omitempty"` // -1 when there is none
		Exited   bool   `json:"exited,omitempty"`
		Status   string `json:"status,omitempty"`
		Error    string `json:"error,omitempty"`
	}
)

// signal is the name of a signal, or its number.
type signal string

// UnmarshalJSON implements json.Unmarshaler.
func (s *signal) UnmarshalJSON(text []byte) error {
	*s = signal(strings.Trim(string(text), `"`))
	return nil
}

var signals = map[signal]syscall.Signal{
	"SIGNAL_SIGTERM": syscall.SIGTERM, "15": syscall.SIGTERM,
	"SIGNAL_SIGKILL": syscall.SIGKILL, "9": syscall.SIGKILL,
}

// size returns how many bytes the configuration has.
func (c processConfig) size() int {
	const perWord = 48 // of a string and its place in a map
	size := len(c.Cmd) + len(c.Cwd)
	for _, arg := range c.Args {
		size += perWord + len(arg)
	}
	for name, value := range c.Envs {
		size += 2*perWord + len(name) + len(value)
	}
	return size
}

// text returns the configuration as a command line for people: without the login shell that E2B's
// clients put around one.
func (c processConfig) text(quoted string) string {
	if n := len(c.Args); strings.HasSuffix(c.Cmd, "/bash") && n == 3 && c.Args[0] == "-l" && c.Args[1] == "-c" {
		return c.Args[2]
	}
	return quoted
}

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

// workingDirectory returns the absolute path of the folder that a process starts in.
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

// size returns the size of a terminal; 0 is the engine's default.
func (p *ptyConfig) size() (rows, cols uint16, failed *failure) {
	const most = 1<<16 - 1
	if p.Size.Rows > most || p.Size.Cols > most {
		return 0, 0, failf(codeInvalidArgument, "pty.size: rows and cols must be at most %d", most)
	}
	return uint16(p.Size.Rows), uint16(p.Size.Cols), nil
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

func endOfCommand(s command.Status) endEvent {
	return endOf(s.Wait, s.TimedOut || s.ExitCode != nil)
}

func endOfTerminal(s terminal.Status) endEvent {
	return endOf(s.Wait, s.TimedOut || s.ExitCode != nil)
}

// endOf returns the end of a process with a status of wait(2), if that is known.
func endOf(status syscall.WaitStatus, known bool) endEvent {
	var end endEvent
	switch {
	case !known:
		return endEvent{ExitCode: -1, Status: "exit status unknown", Error: "exit status unknown"}
	case status.Signaled():
		end.ExitCode, end.Status = -1, "signal: "+status.Signal().String()
		if status.CoreDump() {
			end.Status += " (core dumped)"
		}
	default:
		end.ExitCode, end.Exited, end.Status = status.ExitStatus(), true, "exit status "+strconv.Itoa(status.ExitStatus())
	}
	if end.ExitCode != 0 {
		end.Error = end.Status
	}
	return end
}
