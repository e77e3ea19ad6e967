package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/clients/go/execd"
)

const (
	// DefaultMaxOutput is how much of each output a Result keeps, in bytes.
	DefaultMaxOutput = 16 << 20
	// interruptPatience is how long the request to interrupt a command may take.
	interruptPatience = 5 * time.Second
	// commandID is the header with a command's id.
	commandID = "X-Command-Id"
)

// Commands runs shell commands in a sandbox.
type Commands struct{ box *Sandbox }

// RunOptions are how a command runs. Nil means all of its defaults.
type RunOptions struct {
	// Cwd is the directory; empty means the sandbox's working directory.
	Cwd string
	// Envs are environment variables on top of the sandbox's own.
	Envs map[string]string
	// UID and GID are who runs it; nil means the daemon's own user.
	UID, GID *int64
	// Timeout is after how long it is ended; 0 means never.
	Timeout time.Duration
	// Stdin is what Run gives the command to read; nil means an empty standard input. When the
	// command ends first, Run returns although a Read may still wait, whose bytes are lost then.
	Stdin io.Reader
	// OpenStdin has Start give the command a standard input for [Command.Stdin].
	OpenStdin bool
	// OnStdout and OnStderr get the output as it comes, exactly as it was written. They may keep
	// the bytes. The next piece waits for them to return.
	OnStdout, OnStderr func([]byte)
	// MaxOutput is how many bytes of each output the Result keeps; 0 means DefaultMaxOutput.
	// OnStdout and OnStderr get all of it.
	MaxOutput int
}

// request is what the contract calls the options.
func (o *RunOptions) request(command string, background bool) execd.CommandRequest {
	request := execd.CommandRequest{Command: command, Background: optional(background)}
	if o == nil {
		return request
	}
	request.Cwd, request.Envs = optional(o.Cwd), o.Envs
	request.UID, request.GID = o.UID, o.GID
	request.Stdin = optional(background && o.OpenStdin || !background && o.Stdin != nil)
	if o.Timeout > 0 {
		request.Timeout = new(max(1, o.Timeout.Milliseconds()))
	}
	return request
}

// Result is how a command ended.
type Result struct {
	ID string
	// Stdout and Stderr are the output, up to RunOptions.MaxOutput bytes of each; Truncated says
	// that there was more.
	Stdout, Stderr string
	Truncated      bool
	// ExitCode is nil after a timeout.
	ExitCode *int
	// ErrorName is empty after exit code 0, else CommandExecError or CommandTimeoutError.
	ErrorName string
	// Reason is why it failed, where that is known: OOMKilled.
	Reason   string
	Duration time.Duration
}

// OOMKilled is the Reason of a [Result], a [CommandStatus] and an [Execution] whose command or
// interpreter the kernel ended because memory ran out. The sandbox goes on.
const OOMKilled = "OOM_KILLED"

// OOMKilled reports whether the kernel ended the command because memory ran out.
func (r Result) OOMKilled() bool { return r.Reason == OOMKilled }

// TimedOut reports whether the timeout ended the command.
func (r Result) TimedOut() bool { return r.ErrorName == "CommandTimeoutError" }

// Err returns nil after exit code 0, and otherwise an error that says how the command ended.
func (r Result) Err() error {
	switch {
	case r.ErrorName == "":
		return nil
	case r.TimedOut():
		return errors.New("the command was ended by its timeout")
	case r.OOMKilled() && r.ExitCode != nil:
		return fmt.Errorf("the command ended with exit code %d: memory ran out (%s)", *r.ExitCode, OOMKilled)
	case r.ExitCode != nil:
		return fmt.Errorf("the command ended with exit code %d", *r.ExitCode)
	}
	return errors.New("the command failed: " + clean(r.ErrorName, 64))
}

// Run runs a command with the sandbox's shell and returns when it has ended. Run succeeds when the
// command fails: see Result.ExitCode. When ctx ends, or RunOptions.Stdin cannot be read, the
// command is interrupted.
func (c Commands) Run(ctx context.Context, command string, o *RunOptions) (Result, error) {
	request := o.request(command, false)
	creation := makeOnce(func(ctx context.Context, headers execd.RequestEditorFn) (*http.Response, error) {
		return c.box.daemon.RunCommand(ctx, nil, request, headers)
	})
	response, err := c.box.client.send(ctx, repeatable, creation.request)
	if err != nil {
		creation.takeBack(ctx, commandID, c.interrupt)
		return Result{}, err
	}
	if err := checkStream(response); err != nil {
		return Result{}, err
	}
	running := c.handle(response.Header.Get(commandID))
	if running.ID == "" {
		_ = response.Body.Close()
		return Result{}, errors.New("the answer has no X-Command-ID")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o != nil && o.Stdin != nil {
		go func() {
			if err := running.feed(ctx, o.Stdin); err != nil {
				cancel(err)
			}
		}()
	}
	result, err := running.wait(ctx, response, o)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
		running.abort(ctx)
	}
	return result, err
}

// CommandListOptions choose commands. Nil means all of them.
type CommandListOptions struct {
	// Running chooses those that run, or those that have ended; nil means both.
	Running *bool
}

// List returns the commands that run and the last that have ended, whoever started them, in the
// order of their starts. The daemon bounds the list and shortens long command lines.
func (c Commands) List(ctx context.Context, o *CommandListOptions) ([]CommandStatus, error) {
	var params execd.ListCommandsParams
	if o != nil {
		params.Running = o.Running
	}
	var list []CommandStatus
	err := c.box.client.call(ctx, repeatable, &list,
		func(ctx context.Context) (*http.Response, error) { return c.box.daemon.ListCommands(ctx, &params) })
	return list, err
}

// Start starts a command in the background. It goes on whatever becomes of ctx and of the client,
// except that one whose ctx ends before Start returns is interrupted: the caller does not have its
// id. Of o, Stdin, OnStdout, OnStderr and MaxOutput do not count.
func (c Commands) Start(ctx context.Context, command string, o *RunOptions) (*Command, error) {
	var accepted execd.CommandAccepted
	request := o.request(command, true)
	creation := makeOnce(func(ctx context.Context, headers execd.RequestEditorFn) (*http.Response, error) {
		return c.box.daemon.RunCommand(ctx, nil, request, asJSON, headers)
	})
	if err := c.box.client.call(ctx, repeatable, &accepted, creation.request); err != nil {
		creation.takeBack(ctx, commandID, c.interrupt)
		return nil, err
	}
	return c.handle(accepted.ID), nil
}

// Connect returns the command with that id, which may run or have ended.
func (c Commands) Connect(ctx context.Context, id string) (*Command, error) {
	command := c.handle(id)
	status, err := command.Status(ctx)
	if status.Stdin != nil {
		command.input = status.Stdin.Offset
	}
	return command, err
}

// interrupt ends the command with that id.
func (c Commands) interrupt(ctx context.Context, id string) error { return c.handle(id).Interrupt(ctx) }

func (c Commands) handle(id string) *Command { return &Command{ID: id, box: c.box} }

// asJSON asks for the answer that is no stream.
func asJSON(_ context.Context, request *http.Request) error {
	request.Header.Set("Accept", "application/json")
	return nil
}

// asStream asks for the answer that is a stream.
func asStream(_ context.Context, request *http.Request) error {
	request.Header.Set("Accept", "text/event-stream")
	return nil
}

// Command is a command in a sandbox.
type Command struct {
	ID    string
	box   *Sandbox
	input int64 // bytes of its standard input that were written before
}

// Status returns how the command is doing.
func (c *Command) Status(ctx context.Context) (CommandStatus, error) {
	var status CommandStatus
	err := c.box.client.call(ctx, repeatable, &status,
		func(ctx context.Context) (*http.Response, error) {
			return c.box.daemon.GetCommandStatus(ctx, c.ID)
		})
	return status, err
}

// Interrupt ends the command: its process group gets SIGTERM and, two seconds later, SIGKILL. A
// command that has ended is left as it is.
func (c *Command) Interrupt(ctx context.Context) error {
	return c.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return c.box.daemon.InterruptCommand(ctx, &execd.InterruptCommandParams{ID: c.ID})
	})
}

// abort interrupts the command of a caller whose ctx has ended.
func (c *Command) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptPatience)
	defer cancel()
	_ = c.Interrupt(ctx) // best effort: the sandbox ends the command at its expiry
}

// LogEnd is where a part of a command's log ends.
type LogEnd struct {
	// Cursor is for the next call. An unfinished last line does not count, and comes again.
	Cursor int64
	// Dropped is how many bytes of output are missing after it: those beyond the limit of the
	// output, or that could not be stored.
	Dropped int64
}

// Logs returns what the command wrote after a line, both outputs combined. The first cursor is -1.
func (c *Command) Logs(ctx context.Context, cursor int64) (text string, end LogEnd, err error) {
	log, end, err := c.OpenLogs(ctx, cursor)
	if err != nil {
		return "", LogEnd{Cursor: cursor}, err
	}
	defer func() { _ = log.Close() }()
	data, err := readBounded(log, c.box.client.maxAnswer)
	if err != nil {
		return "", LogEnd{Cursor: cursor}, err
	}
	return string(data), end, nil
}

// OpenLogs is Logs for output of any size: a stream, which is to be closed.
func (c *Command) OpenLogs(
	ctx context.Context, cursor int64,
) (log io.ReadCloser, end LogEnd, err error) {
	response, err := c.box.client.send(ctx, repeatable,
		func(ctx context.Context) (*http.Response, error) {
			return c.box.daemon.GetCommandLogs(ctx, c.ID, &execd.GetCommandLogsParams{Cursor: &cursor})
		})
	if err != nil {
		return nil, LogEnd{Cursor: cursor}, err
	}
	end.Cursor, err = strconv.ParseInt(response.Header.Get("Execd-Commands-Tail-Cursor"), 10, 64)
	if err == nil {
		if dropped := response.Header.Get("Execd-Commands-Dropped-Bytes"); dropped != "" {
			end.Dropped, err = strconv.ParseInt(dropped, 10, 64)
		}
	}
	if err != nil {
		_ = response.Body.Close()
		return nil, LogEnd{Cursor: cursor}, fmt.Errorf("the headers of a command's log: %w", err)
	}
	return response.Body, end, nil
}

// The streams of an [Output].
const (
	Stdout = "stdout"
	Stderr = "stderr"
	// Notice is a remark about the output itself: that a part of it was cut.
	Notice = "notice"
)

// Output is a piece of a command's output, exactly as it was written.
type Output struct {
	Stream string // Stdout, Stderr or Notice
	Data   []byte
}

// Outputs yields all output of the command from its beginning, and ends with the command.
func (c *Command) Outputs(ctx context.Context) iter.Seq2[Output, error] {
	return func(yield func(Output, error) bool) {
		stopped := false
		var result Result
		err := c.follow(ctx, nil, &result, func(stream string, data []byte) bool {
			stopped = !yield(Output{stream, data}, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(Output{}, err)
		}
	}
}

// Wait waits for the end of the command and returns all of its output. Of o only OnStdout, OnStderr
// and MaxOutput count. When ctx ends, the command goes on.
func (c *Command) Wait(ctx context.Context, o *RunOptions) (Result, error) {
	return c.wait(ctx, nil, o)
}

// wait follows the command, on a stream that is open already if there is one.
func (c *Command) wait(ctx context.Context, answer *http.Response, o *RunOptions) (Result, error) {
	if o == nil {
		o = &RunOptions{}
	}
	result := Result{ID: c.ID}
	stdout, stderr := newKept(o.MaxOutput), newKept(o.MaxOutput)
	err := c.follow(ctx, answer, &result, func(stream string, data []byte) bool {
		switch stream {
		case Stdout:
			stdout.add(data, o.OnStdout)
		case Stderr:
			stderr.add(data, o.OnStderr)
		case Notice:
			result.Truncated = true
		}
		return true
	})
	result.Stdout, result.Stderr = stdout.String(), stderr.String()
	result.Truncated = result.Truncated || stdout.cut || stderr.cut
	return result, err
}

// follow calls each with the output until the command has ended, and says in result how.
func (c *Command) follow(ctx context.Context, answer *http.Response, result *Result,
	each func(stream string, data []byte) (more bool)) error {
	f := &follower{
		client: c.box.client, what: "command " + c.ID, answer: answer, numbered: true, endless: true,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return c.box.daemon.StreamCommand(ctx, c.ID,
				&execd.StreamCommandParams{LastEventID: optional(last)})
		},
	}
	return f.follow(ctx, func(data []byte) (bool, error) {
		event, err := decodeEvent[execd.StreamEvent](data)
		if err != nil {
			return false, err
		}
		more := true
		switch event.Type {
		case execd.StreamEventTypeStdout:
			more = each(Stdout, outputOf(event))
		case execd.StreamEventTypeStderr:
			more = each(Stderr, outputOf(event))
		case execd.StreamEventTypeStatus:
			more = each(Notice, []byte(deref(event.Text)))
		case execd.StreamEventTypeExecutionComplete, execd.StreamEventTypeError:
			result.ExitCode, result.Reason = event.ExitCode, deref(event.Reason)
			result.Duration = time.Duration(deref(event.ExecutionTime)) * time.Millisecond
			if event.Error != nil {
				result.ErrorName = event.Error.Ename
			}
			return true, nil
		}
		if !more {
			return false, errStopped
		}
		return false, nil
	})
}

// outputOf rebuilds the exact bytes that an output event stands for. An event is a line without its
// newline, except that an empty line is the newline itself and that a partial line has none. Bytes
// that are not UTF-8 come in raw.
func outputOf(e execd.StreamEvent) []byte {
	output := e.Raw
	if len(output) == 0 && e.Text != nil {
		output = []byte(*e.Text)
	}
	if deref(e.Partial) || string(output) == "\n" {
		return output
	}
	return append(output, '\n')
}

// kept is the beginning of an output.
type kept struct {
	bytes.Buffer
	limit int
	cut   bool
}

func newKept(limit int) *kept {
	if limit <= 0 {
		limit = DefaultMaxOutput
	}
	return &kept{limit: limit}
}

func (k *kept) add(data []byte, on func([]byte)) {
	room := max(0, k.limit-k.Len())
	if len(data) > room {
		k.cut = true
	}
	k.Write(data[:min(room, len(data))])
	if on != nil {
		on(data)
	}
}
