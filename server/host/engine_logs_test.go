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

// OpenLog has no times, and supports a tail of one line only. A log that is followed lacks a last line
// without a newline, as Docker's do.
func (e *memoryEngine) OpenLog(ctx context.Context, id string, options engine.LogOptions) (io.ReadCloser, error) {
	var text string
	err := e.around(ctx, callOpenLog, id, func() error {
		_, err := e.find(id)
		text = e.logs
		return err
	})
	if newline := strings.LastIndexByte(text, '\n'); options.Follow {
		text = text[:newline+1]
	} else if options.Tail == 1 {
		text = text[newline+1:]
	}
	return io.NopCloser(strings.NewReader(text)), err
}
