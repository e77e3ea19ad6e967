package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/openapi/serve/respond"
)

const (
	// cellKeepAlive is the interval of keepalive lines while a cell has no output.
	cellKeepAlive = 5 * time.Second
	// lineSize is about how many bytes of output one line carries.
	lineSize = 32 << 10

	mediaLines = "application/x-ndjson"
)

// errStopping ends the response of a cell that has ended with its sandbox, before the last line:
// clients must not take that for an error of the code.
var errStopping = errors.New("the sandbox is ending")

// cell sends the output of a cell to the client that runs it, as lines of JSON.
type cell struct {
	ctx      context.Context
	response *echo.Response
	stopping func() bool // see [Options.Stopping]
	out      io.Writer
	line     []byte

	queued    chan struct{} // closed when the rest is known
	execution *code.Execution
	failed    error
}

// answer sends the lines of the cell until its end. An error means that the client did not get all
// of them.
func (l *cell) answer() error {
	header := l.response.Header()
	header.Set("Content-Type", mediaLines)
	header.Set("Cache-Control", "no-store")
	l.response.WriteHeader(http.StatusOK)
	l.out = respond.BoundedWriter(l.response, writeTime)
	if err := l.flush(); err != nil {
		return err
	}
	silence := time.NewTimer(cellKeepAlive)
	defer silence.Stop()
	if err := l.wait(l.queued, silence); err != nil {
		return err
	}
	if l.failed != nil {
		if l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		l.say(errorLine{Type: "error", Name: "ExecutionError", Value: l.failed.Error()})
		l.say(typeLine{"end_of_execution"})
		return l.flush()
	}
	reader, err := l.execution.Log().Reader(0)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		ended, err := l.catchUp(reader)
		if err == nil {
			err = l.flush()
		}
		if err != nil || ended {
			return err
		}
		if err := l.wait(reader.Wait(), silence); err != nil {
			return err
		}
	}
}

// wait waits until the channel is closed, and sends a line in each interval of cellKeepAlive.
func (l *cell) wait(until <-chan struct{}, silence *time.Timer) error {
	silence.Reset(cellKeepAlive)
	for {
		select {
		case <-until:
			return nil
		case <-silence.C:
			l.say(typeLine{"keepalive"})
			if err := l.flush(); err != nil {
				return err
			}
			silence.Reset(cellKeepAlive)
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

// catchUp adds lines for the new output of the cell, about lineSize bytes at most, and reports
// whether the output has ended. Text of the same stream goes into one line.
func (l *cell) catchUp(reader *eventlog.Reader) (ended bool, err error) {
	var stream eventlog.Type
	var text []byte
	sayText := func() {
		if len(text) > 0 {
			l.say(textLine{string(stream), string(text)})
		}
		text = text[:0]
	}
	for len(l.line) < lineSize {
		event, ok, err := reader.Next()
		if errors.Is(err, io.EOF) {
			sayText()
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		if event.Type != stream || len(text) > lineSize {
			sayText()
			stream = event.Type
		}
		switch event.Type {
		case eventlog.TypeStdout, eventlog.TypeStderr:
			text = append(text, event.Text...)
			if !event.Partial {
				text = append(text, '\n')
			}
		case eventlog.TypeStatus: // clients have nothing for it
			l.say(textLine{string(eventlog.TypeStderr), string(event.Text) + "\n"})
		case eventlog.TypeResult, eventlog.TypeDisplay:
			result, err := resultOf(event.Text, event.Type == eventlog.TypeResult)
			if err != nil {
				return false, err
			}
			l.say(result)
		case eventlog.TypeCount:
			count, err := strconv.Atoi(string(event.Text))
			if err != nil {
				return false, err
			}
			l.say(countLine{"number_of_executions", count})
		case eventlog.TypeComplete:
			l.say(typeLine{"end_of_execution"})
		case eventlog.TypeError:
			outcome, err := code.ParseOutcome(event.Text)
			if err != nil {
				return false, err
			}
			if outcome.Error != nil && l.stopping() {
				return false, errStopping
			}
			if raised := outcome.Error; raised != nil {
				l.say(errorLine{"error", raised.Name, raised.Value, strings.Join(raised.Traceback, "\n")})
			}
			l.say(typeLine{"end_of_execution"})
		}
	}
	sayText()
	return false, nil
}

// say adds a line. Clients decode each part that arrives by itself and would break a character that
// is cut, so the line is ASCII.
func (l *cell) say(message any) {
	data, err := json.Marshal(message)
	if err != nil {
		panic(err) // strings, numbers and what has been JSON already can be encoded
	}
	l.line = append(appendASCII(l.line, data), '\n')
}

// appendASCII appends JSON with every character escaped that is not ASCII: it is in a string.
func appendASCII(b, data []byte) []byte {
	start := 0
	for i := 0; i < len(data); {
		if data[i] < utf8.RuneSelf {
			i++
			continue
		}
		b = append(b, data[start:i]...)
		char, size := utf8.DecodeRune(data[i:])
		if high, low := utf16.EncodeRune(char); high != utf8.RuneError {
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		} else {
			b = fmt.Appendf(b, `\u%04x`, char)
		}
		i += size
		start = i
	}
	return append(b, data[start:]...)
}

// flush sends the lines.
func (l *cell) flush() error {
	if len(l.line) > 0 {
		if _, err := l.out.Write(l.line); err != nil {
			return err
		}
		l.line = l.line[:0]
		if cap(l.line) > 4*lineSize { // of a large result
			l.line = nil
		}
	}
	return http.NewResponseController(l.response).Flush()
}
