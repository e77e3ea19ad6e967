package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"sandbox.internal/gen/execd"
)

// runCommand runs a shell command in the foreground, calls onOutput with each piece of
// its standard output as it arrives, and returns all of it. A command that does not end
// with exit code 0 is an error, and so is a stream that ends without saying how.
func runCommand(ctx context.Context, daemon *execd.Client, line string,
	onOutput func([]byte)) (stdout []byte, err error) {
	// The call with a parsed response would read the whole stream before it returns.
	response, err := daemon.RunCommand(ctx, execd.CommandRequest{Command: line})
	if err := expect(response, err, http.StatusOK); err != nil {
		return nil, err
	}
	// Not drained, unlike other bodies: on an error the stream may go on for long.
	defer func() { _ = response.Body.Close() }()
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		return nil, fmt.Errorf("a foreground command answers with an event stream, not %q", kind)
	}

	var stderr []byte
	events := newEventReader(response.Body)
	for {
		raw, err := events.next()
		if errors.Is(err, io.EOF) {
			return stdout, errors.New("the stream ended before the command did")
		}
		if err != nil {
			return stdout, fmt.Errorf("read the command's stream: %w", err)
		}
		var e execd.StreamEvent
		if err := json.Unmarshal(raw.data, &e); err != nil {
			return stdout, fmt.Errorf("event %s of the command's stream: %w", raw.id, err)
		}
		switch e.Type {
		case execd.StreamEventTypeStdout:
			output := outputOf(e)
			stdout = append(stdout, output...)
			onOutput(output)
		case execd.StreamEventTypeStderr:
			stderr = append(stderr, outputOf(e)...)
		case execd.StreamEventTypeExecutionComplete:
			if _, err := events.next(); !errors.Is(err, io.EOF) {
				return stdout, errors.New("the stream went on after the event that ends it")
			}
			return stdout, nil
		case execd.StreamEventTypeError:
			return stdout, commandError(e, stderr)
		}
	}
}

// commandError says in one line why a command failed.
func commandError(e execd.StreamEvent, stderr []byte) error {
	reason := "no details"
	if e.Error != nil {
		reason = strings.TrimSpace(e.Error.Ename + " " + e.Error.Evalue)
	}
	if said := bytes.TrimSpace(stderr); len(said) > 0 {
		reason += ": " + string(said)
	}
	return fmt.Errorf("the command failed: %s", reason)
}

// outputOf rebuilds the exact bytes that an output event stands for. An event is a
// line without its newline, except that an empty line is the newline itself and that a
// partial line has none. Bytes that are not UTF-8 come in raw.
func outputOf(e execd.StreamEvent) []byte {
	output := e.Raw
	if len(output) == 0 && e.Text != nil {
		output = []byte(*e.Text)
	}
	if (e.Partial != nil && *e.Partial) || string(output) == "\n" {
		return output
	}
	return append(bytes.Clone(output), '\n')
}
