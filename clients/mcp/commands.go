package mcp

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	sandbox "sandbox.internal/clients/go"
)

type commandInput struct {
	boxInput
	Command string            `json:"command"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	Wait       int  `json:"wait_seconds,omitempty" jsonschema:"answer at the latest after; default 45"`
	Timeout    int  `json:"timeout_seconds,omitempty" jsonschema:"end it after; default 3600"`
	Background bool `json:"background,omitempty" jsonschema:"answer at once; for servers"`
}

// commandOutput is what calls report of a command, or of the sandbox's own program, which has no
// id.
type commandOutput struct {
	Command  string `json:"command,omitempty"`
	Running  bool   `json:"running,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Reason   string `json:"reason,omitempty"` // OOM_KILLED
	TimedOut bool   `json:"timed_out,omitempty"`
	Cursor   *int64 `json:"cursor,omitempty"` // with which read_logs reads on
	Output   string `json:"output"`
}

func (t *tools) runCommand(ctx context.Context, request call,
	in commandInput) (content, commandOutput, error) {
	var out commandOutput
	timeout, err := secondsOf("timeout_seconds", in.Timeout, maxWait)
	if err != nil {
		return nil, out, err
	}
	wait, err := secondsOf("wait_seconds", in.Wait, defaultWait)
	if err != nil {
		return nil, out, err
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, out, err
	}
	options := &sandbox.RunOptions{Cwd: in.Cwd, Envs: in.Env, Timeout: timeout}
	if in.Background && in.Timeout == 0 {
		options.Timeout = 0
	}
	// In the background, for it may outlast the call.
	command, err := box.Commands.Start(ctx, in.Command, options)
	if err != nil {
		return nil, out, err
	}
	out.Command, out.Running = command.ID, true
	if in.Background {
		return text("command: %s\nread_logs shows its output.", command.ID), out, nil
	}
	output := &excerpt{}
	progress := newProgress(ctx, request)
	defer progress.stop()
	collect := func(p []byte) {
		output.add(p)
		progress.output(p)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	result, err := command.Wait(waiting,
		&sandbox.RunOptions{OnStdout: collect, OnStderr: collect, MaxOutput: 1})
	out.Output = output.text(func(line int64) string {
		return fmt.Sprintf("read_logs with command and cursor %d reads on from there", line)
	})
	switch {
	case err == nil:
		out.Running, out.ExitCode, out.TimedOut = false, result.ExitCode, result.TimedOut()
		out.Reason = result.Reason
		how := exitText(result.ExitCode, result.Reason)
		if out.TimedOut {
			how = fmt.Sprintf("ended by its timeout of %v", timeout)
		}
		return text("%s\ncommand: %s, %v\n%s", how, result.ID, result.Duration, out.Output), out, nil
	case ctx.Err() != nil:
		interrupt(ctx, command)
		return nil, out, context.Cause(ctx)
	case waiting.Err() == nil:
		return nil, out, fmt.Errorf("command: %s\n%w", command.ID, err)
	}
	out.Cursor = new(output.lines - 1)
	return text("running after %v\ncommand: %s, cursor: %d\n"+
		"read_logs with these and wait_seconds %d waits for the rest.\n%s",
		wait, command.ID, *out.Cursor, defaultWait, out.Output), out, nil
}

// exitText is an exit code and why it is that one, where that is known.
func exitText(code *int, reason string) string {
	text := fmt.Sprintf("exit code: %v", value(code))
	if reason == sandbox.OOMKilled {
		text += " (" + reason + ": memory ran out)"
	}
	return text
}

// interrupt ends the command of a client that has gone.
func interrupt(ctx context.Context, command *sandbox.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptPatience)
	defer cancel()
	_ = command.Interrupt(ctx) // best effort: the sandbox ends the command at its expiry
}

// secondsOf checks the number of seconds in a field.
func secondsOf(field string, seconds, fallback int) (time.Duration, error) {
	if seconds == 0 {
		seconds = fallback
	}
	if seconds < 1 || seconds > maxWait {
		return 0, fmt.Errorf("%s must be 1 to %d, not %d", field, maxWait, seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

func value(code *int) any {
	if code == nil {
		return "none"
	}
	return *code
}

type logsInput struct {
	boxInput
	Command string `json:"command,omitempty" jsonschema:"id"`
	Cursor  *int64 `json:"cursor,omitempty" jsonschema:"of a command: only lines after this one"`
	Wait    int    `json:"wait_seconds,omitempty" jsonschema:"of a command: wait for its end"`
	Tail    int    `json:"tail,omitempty" jsonschema:"of the sandbox: last lines; default 200"`
}

func (t *tools) readLogs(ctx context.Context, request call,
	in logsInput) (content, commandOutput, error) {
	var out commandOutput
	wait, err := secondsOf("wait_seconds", in.Wait, 1)
	if err != nil {
		return nil, out, err
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, out, err
	}
	if in.Command == "" {
		return boxLogs(ctx, box, in.Tail)
	}
	command, err := box.Commands.Connect(ctx, in.Command)
	if err != nil {
		return nil, out, err
	}
	if in.Wait > 0 {
		if err := awaitEnd(ctx, request, command, wait); err != nil {
			return nil, out, err
		}
	}
	cursor := int64(-1)
	if in.Cursor != nil {
		cursor = *in.Cursor
	}
	return commandLogs(ctx, command, cursor)
}

// awaitEnd waits for the end of a command, or for so long.
func awaitEnd(ctx context.Context, request call, command *sandbox.Command,
	wait time.Duration) error {
	progress := newProgress(ctx, request)
	defer progress.stop()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, err := command.Wait(waiting, &sandbox.RunOptions{MaxOutput: 1})
	if ctx.Err() == nil && waiting.Err() != nil {
		return nil
	}
	return err
}

// commandLogs is what a command printed after a line.
func commandLogs(ctx context.Context, command *sandbox.Command,
	cursor int64) (content, commandOutput, error) {
	out := commandOutput{Command: command.ID}
	status, err := command.Status(ctx) // before the log, so that an ended command has no more
	if err != nil {
		return nil, out, err
	}
	stream, end, err := command.OpenLogs(ctx, cursor)
	if err != nil {
		return nil, out, err
	}
	defer func() { _ = stream.Close() }()
	log, err := io.ReadAll(io.LimitReader(stream, maxText+1))
	if err != nil {
		return nil, out, err
	}
	out.Running, out.ExitCode = status.Running, status.ExitCode
	if status.Reason != nil {
		out.Reason = *status.Reason
	}
	state := "running: true"
	if !status.Running {
		state = "running: false, " + exitText(status.ExitCode, out.Reason)
	}
	if len(log) > maxText {
		part := cutLines(string(log))
		next := cursor + int64(strings.Count(part, "\n"))
		out.Cursor, out.Output = &next, part+"[cut]"
		return text("%s\n%s\n[cut; cursor %d reads on]", state, part, next), out, nil
	}
	missing := ""
	if end.Dropped > 0 {
		missing = fmt.Sprintf(", missing after this: %d bytes, which were not stored", end.Dropped)
	}
	out.Cursor, out.Output = &end.Cursor, string(log)
	if missing != "" {
		out.Output += "[" + strings.TrimPrefix(missing, ", ") + "]"
	}
	return text("%s, cursor: %d%s\n%s", state, end.Cursor, missing, log), out, nil
}

// boxLogs is the end of what the sandbox's own program printed.
func boxLogs(ctx context.Context, box *sandbox.Sandbox, tail int) (content, commandOutput, error) {
	var out commandOutput
	if tail <= 0 {
		tail = defaultTail
	}
	log, err := box.OpenLogs(ctx, &sandbox.LogOptions{Tail: &tail})
	if err != nil {
		return nil, out, err
	}
	defer func() { _ = log.Close() }()
	output := &excerpt{}
	if _, err := io.Copy(output, log); err != nil {
		return nil, out, err
	}
	out.Output = output.text(func(int64) string { return "a smaller tail shows the last lines whole" })
	return text("%s", out.Output), out, nil
}
