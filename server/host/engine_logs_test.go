package host_test

import (
	"context"
	"io"
	"strings"

	"sandbox.internal/runtime/engine"
)

func (e *memoryEngine) Logs(context.Context, string, int) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.logs, nil
}

// OpenLog supports tails of no line and of one. All of a log was written before any time that is
// asked for. A log that is followed lacks a last line without a newline, as Docker's do.
func (e *memoryEngine) OpenLog(ctx context.Context, id string, options engine.LogOptions) (io.ReadCloser, error) {
	var text string
	err := e.around(ctx, callOpenLog, id, func() error {
		_, err := e.find(id)
		text = e.logs
		return err
	})
	if options.Tail == 0 || !options.Since.IsZero() {
		text = ""
	}
	if options.Tail == 1 {
		text = text[strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n')+1:]
	}
	if options.Follow {
		text = text[:strings.LastIndexByte(text, '\n')+1]
	}
	return io.NopCloser(strings.NewReader(text)), err
}
