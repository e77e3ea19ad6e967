package goclient_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
)

func testCommands(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	var live bytes.Buffer
	result, err := box.Commands.Run(ctx,
		`printf '%s %s\n\n\377end' "$GREETING" "$X"; echo oops >&2; exit 3`,
		&sandbox.RunOptions{Cwd: "/tmp", Envs: map[string]string{"X": "you"},
			OnStdout: func(p []byte) { live.Write(p) }})
	check(t, err)
	if want := "hello you\n\n\xffend"; result.Stdout != want || live.String() != want {
		t.Errorf("stdout %q and %q, want %q", result.Stdout, live.String(), want)
	}
	if result.Stderr != "oops\n" || result.ExitCode == nil || *result.ExitCode != 3 ||
		result.ErrorName != "CommandExecError" || result.Err() == nil {
		t.Errorf("%+v", result)
	}
	result, err = box.Commands.Run(ctx, "echo started; sleep 60",
		&sandbox.RunOptions{Timeout: 200 * time.Millisecond})
	check(t, err)
	if result.ExitCode != nil || !result.TimedOut() || result.Stdout != "started\n" {
		t.Errorf("after a timeout: %+v", result)
	}
	result, err = box.Commands.Run(ctx, "seq 1000", &sandbox.RunOptions{MaxOutput: 5})
	check(t, err)
	if result.Stdout != "1\n2\n3" || !result.Truncated || result.Err() != nil {
		t.Errorf("bounded: %+v", result)
	}
	result, err = box.Commands.Run(ctx, "id -u; id -g",
		&sandbox.RunOptions{UID: new(int64(1000)), GID: new(int64(1001))})
	check(t, err)
	if result.Stdout != "1000\n1001\n" {
		t.Errorf("as another user: %+v", result)
	}
}

func testBackground(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	_, err := box.Commands.Run(ctx, "test -p /tmp/gate || mkfifo /tmp/gate", nil)
	check(t, err)
	started, err := box.Commands.Start(ctx, "echo one; read -r x < /tmp/gate; echo $x", nil)
	check(t, err)
	command, err := box.Commands.Connect(ctx, started.ID)
	check(t, err)
	status, err := command.Status(ctx)
	check(t, err)
	if status.Content == "" {
		t.Errorf("%+v", status)
	}
	listed := func(o *sandbox.CommandListOptions) bool {
		list, err := box.Commands.List(ctx, o)
		check(t, err)
		return slices.ContainsFunc(list, func(s sandbox.CommandStatus) bool {
			return s.ID == command.ID && s.Content == status.Content && s.Cwd != nil
		})
	}
	if !listed(nil) || !listed(&sandbox.CommandListOptions{Running: new(true)}) {
		t.Error("a command that runs is not in the lists")
	}
	_ = command.Interrupt(ctx)
	_, err = command.Wait(ctx, nil)
	check(t, err)
	if !listed(nil) || listed(&sandbox.CommandListOptions{Running: new(true)}) {
		t.Error("a command that has ended is not only in the list of those")
	}

	counted, err := box.Commands.Start(ctx, "seq 3; echo four >&2", nil)
	check(t, err)
	var stdout, stderr string
	for output, err := range counted.Outputs(ctx) {
		check(t, err)
		switch output.Stream {
		case sandbox.Stdout:
			stdout += string(output.Data)
		case sandbox.Stderr:
			stderr += string(output.Data)
		}
	}
	if stdout != "1\n2\n3\n" || stderr != "four\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	text, end, err := counted.Logs(ctx, -1)
	check(t, err)
	if strings.Count(text, "\n") != 4 || end.Cursor != 3 {
		t.Errorf("log %q, end %+v", text, end)
	}
	if text, end, err = counted.Logs(ctx, end.Cursor); err != nil || text != "" || end.Cursor != 3 {
		t.Errorf("after it: %q, %+v, %v", text, end, err)
	}
	for output, err := range counted.Outputs(ctx) { // a reader that stops
		check(t, err)
		if len(output.Data) > 0 {
			break
		}
	}
	if _, err := box.Commands.Connect(ctx, "none"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a command that is not there: %v", err)
	}
}

// testCancel: the command of a caller that has gone is interrupted.
func testCancel(t *testing.T, box *sandbox.Sandbox) {
	ctx, cancel := context.WithCancel(limited(t))
	result, err := box.Commands.Run(ctx, "echo here; exec sleep 4711",
		&sandbox.RunOptions{OnStdout: func([]byte) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", result, err)
	}
	command, err := box.Commands.Connect(limited(t), result.ID)
	check(t, err)
	ended, err := command.Wait(limited(t), nil)
	if err != nil || ended.Err() == nil {
		t.Errorf("the command ended with %+v, %v", ended, err)
	}
}
