package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

func (h *handlers) RunCommand(ctx context.Context, request gen.RunCommandRequestObject) (gen.RunCommandResponseObject, error) {
	spec, err := fromCommandRequest(*request.Body)
	if err != nil {
		return nil, err
	}
	key := request.Params.IdempotencyKey
	id, err := h.repeats.once(ctx, "runCommand", repeat{key, request.Params.IdempotencyAge}, func() (string, error) {
		return h.start(ctx, spec)
	})
	if err != nil {
		return nil, err
	}
	c, err := h.commands.Get(id)
	if err != nil {
		return nil, gone(key, err)
	}
	serve.LogField(ctx, "command_id", c.ID())
	background := value(request.Body.Background)
	if background && !serve.Accepts(serve.Request(ctx), respond.MIMEEventStream) {
		return gen.RunCommand200JSONResponse{
			Body:    gen.CommandAccepted{ID: c.ID()},
			Headers: gen.RunCommand200ResponseHeaders{XCommandID: c.ID()},
		}, nil
	}
	reader, err := c.Log().Reader(0)
	if err != nil {
		return nil, err
	}
	return commandStream{id: c.ID(), logStream: logStream{
		ctx: ctx, reader: reader, detail: appendExit, linger: h.linger, greet: true, initOnly: background,
	}}, nil
}

// start starts a command and returns its id.
func (h *handlers) start(ctx context.Context, spec command.Spec) (string, error) {
	leave, err := h.freezer.Enter()
	if err != nil {
		return "", err
	}
	defer leave()
	record := h.prepare(ctx, activity.Command)
	spec.Ended = func(s command.Status) {
		record.End(activity.Result{Failed: s.Error != "", Exit: s.ExitCode, Error: s.Error})
	}
	c, err := h.commands.Start(spec)
	if err != nil {
		return "", err
	}
	record.Begin(c.ID(), activity.Text(ctx, c.Status().Content))
	return c.ID(), nil
}

func (h *handlers) StreamCommand(ctx context.Context, request gen.StreamCommandRequestObject) (gen.StreamCommandResponseObject, error) {
	c, err := h.commands.Get(request.ID)
	if err != nil {
		return nil, err
	}
	reader, err := resume(c.Log(), request.Params.LastEventID)
	if err != nil {
		return nil, err
	}
	return commandStream{id: c.ID(), logStream: logStream{ctx: ctx, reader: reader, detail: appendExit, linger: h.linger}}, nil
}

// commandStream is the answer with a command's events.
type commandStream struct {
	logStream
	id string
}

// VisitRunCommandResponse implements the generated interface.
func (s commandStream) VisitRunCommandResponse(w http.ResponseWriter) error {
	w.Header().Set("X-Command-ID", s.id)
	return s.serve(w)
}

// VisitStreamCommandResponse implements the generated interface.
func (s commandStream) VisitStreamCommandResponse(w http.ResponseWriter) error { return s.serve(w) }

func (h *handlers) GetCommandStatus(_ context.Context, request gen.GetCommandStatusRequestObject) (gen.GetCommandStatusResponseObject, error) {
	c, err := h.commands.Get(request.ID)
	if err != nil {
		return nil, err
	}
	return gen.GetCommandStatus200JSONResponse(toCommandStatus(c.Status())), nil
}

// The bounds of a list of commands.
const (
	maxListed        = 1000
	maxListedText    = 1 << 20 // bytes of all texts together
	maxListedContent = 1 << 10 // bytes of one command line
)

func (h *handlers) ListCommands(_ context.Context, request gen.ListCommandsRequestObject) (gen.ListCommandsResponseObject, error) {
	all := h.commands.List()
	var running, ended []command.Status
	for _, c := range all {
		if status := c.Status(); status.Running {
			running = append(running, status)
		} else {
			ended = append(ended, status)
		}
	}
	if only := request.Params.Running; only != nil {
		if *only {
			ended = nil
		} else {
			running = nil
		}
	}
	list := make(gen.ListCommands200JSONResponse, 0, min(len(running)+len(ended), maxListed))
	text := 0
	for _, status := range slices.Backward(append(ended, running...)) {
		item := toListedCommand(status)
		text += len(item.Content) + len(status.Dir) + len(status.Error)
		if len(list) == maxListed || text > maxListedText {
			break
		}
		list = append(list, item)
	}
	slices.SortStableFunc(list, func(a, b gen.CommandStatus) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// toListedCommand converts a status for a list, whose command lines are bounded.
func toListedCommand(s command.Status) gen.CommandStatus {
	content, cut := activity.Shorten(s.Content, maxListedContent)
	s.Content = content
	status := toCommandStatus(s)
	if s.PID != 0 {
		status.Pid = &s.PID
	}
	if s.Dir != "" {
		status.Cwd = &s.Dir
	}
	if cut {
		status.ContentTruncated = &cut
	}
	return status
}

func (h *handlers) GetCommandLogs(_ context.Context, request gen.GetCommandLogsRequestObject) (gen.GetCommandLogsResponseObject, error) {
	c, err := h.commands.Get(request.ID)
	if err != nil {
		return nil, err
	}
	after := int64(-1)
	if request.Params.Cursor != nil {
		after = *request.Params.Cursor
	}
	return commandLogs{c.Log().Lines(after)}, nil
}

func (h *handlers) InterruptCommand(ctx context.Context, request gen.InterruptCommandRequestObject) (gen.InterruptCommandResponseObject, error) {
	serve.LogField(ctx, "command_id", request.Params.ID)
	if err := h.requireThawed(); err != nil {
		return nil, err
	}
	if err := h.commands.Interrupt(request.Params.ID); err != nil {
		return nil, err
	}
	return gen.InterruptCommand200JSONResponse{}, nil
}

func (h *handlers) WriteCommandStdin(ctx context.Context, request gen.WriteCommandStdinRequestObject) (gen.WriteCommandStdinResponseObject, error) {
	c, err := h.commands.Get(request.ID)
	if err != nil {
		return nil, err
	}
	state, err := c.WriteInput(ctx, requestBody{request.Body}, request.Params.Offset, value(request.Params.End))
	if err != nil {
		return nil, err
	}
	return gen.WriteCommandStdin200JSONResponse(toCommandStdin(state)), nil
}

// requestBody is the body of a request. Its errors are the client's.
type requestBody struct{ body io.Reader }

func (a requestBody) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = serve.Invalid("body: did not arrive completely; what came was written")
	}
	return n, err
}

func toCommandStdin(s command.InputState) gen.CommandStdin {
	return gen.CommandStdin{Offset: s.Offset, Closed: s.Closed}
}

// commandLogs is the answer with a part of a command's output.
type commandLogs struct{ lines *eventlog.Lines }

// VisitGetCommandLogsResponse implements the generated interface.
func (l commandLogs) VisitGetCommandLogsResponse(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", strconv.FormatInt(l.lines.Last, 10))
	if l.lines.Dropped > 0 {
		w.Header().Set("EXECD-COMMANDS-DROPPED-BYTES", strconv.FormatInt(l.lines.Dropped, 10))
	}
	w.WriteHeader(http.StatusOK)
	_, err := l.lines.WriteTo(respond.BoundedWriter(w, 0))
	return err
}

func fromCommandRequest(r gen.CommandRequest) (command.Spec, error) {
	spec := command.Spec{Command: r.Command, Dir: value(r.Cwd), Env: r.Envs}
	if r.Args != nil {
		spec.Argv = append([]string{r.Command}, r.Args...)
	}
	var err error
	if spec.Timeout, err = toTimeout(r.Timeout); err != nil {
		return spec, err
	}
	spec.UID, spec.GID, spec.Input = toID(r.UID), toID(r.GID), value(r.Stdin)
	return spec, nil
}

// toTimeout converts milliseconds. The contract has no maximum, but a time.Duration has one.
func toTimeout(milliseconds *int64) (time.Duration, error) {
	const limit = int64(365 * 24 * time.Hour / time.Millisecond)
	if value(milliseconds) > limit {
		return 0, serve.Invalid("body/timeout: must be at most %d milliseconds", limit)
	}
	return time.Duration(value(milliseconds)) * time.Millisecond, nil
}

// toID narrows a user or group number; the contract's limits keep it within 32 bits.
func toID(n *int64) *uint32 {
	if n == nil {
		return nil
	}
	id := uint32(*n)
	return &id
}

func toCommandStatus(s command.Status) gen.CommandStatus {
	status := gen.CommandStatus{ID: s.ID, Content: s.Content, Running: s.Running, ExitCode: s.ExitCode, StartedAt: s.StartedAt.UTC()}
	if s.Error != "" {
		status.Error = &s.Error
	}
	if s.OOMKilled {
		status.Reason = new(oomKilled)
	}
	if !s.FinishedAt.IsZero() {
		finished := s.FinishedAt.UTC()
		status.FinishedAt = &finished
	}
	if s.Input != nil {
		status.Stdin = new(toCommandStdin(*s.Input))
	}
	return status
}

// value returns what p points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
