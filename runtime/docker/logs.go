package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"sandbox.internal/runtime/engine"
)

// Logs implements [engine.Engine]. The beginning is cut off; bytes that are not UTF-8 are replaced.
func (e *Engine) Logs(ctx context.Context, id string, tail int) (string, error) {
	if tail <= 0 {
		return "", nil
	}
	var last lastBytes
	err := e.call(ctx, "read the log of container "+id, forContainer,
		func(ctx context.Context) error {
			stream, err := e.api.ContainerLogs(ctx, id,
				container.LogsOptions{ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(tail)})
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			return copyFrames(&last, stream)
		})
	if err != nil {
		return "", err
	}
	return strings.ToValidUTF8(string(last.end()), "?"), nil
}

// OpenLog implements [engine.Engine].
func (e *Engine) OpenLog(ctx context.Context, id string,
	options engine.LogOptions) (io.ReadCloser, error) {
	op := "read the log of container " + id
	request := container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: options.Follow,
		Tail: "all"}
	if options.Tail >= 0 {
		request.Tail = strconv.Itoa(options.Tail)
	}
	if !options.Since.IsZero() {
		request.Since = options.Since.UTC().Format(time.RFC3339Nano)
	}
	// Only the answer's beginning is bound by the API's timeout: the log itself takes as long as
	// its reader.
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(e.timeout, cancel)
	var frames io.ReadCloser
	meaning := forLog
	err := e.negotiate(ctx)
	if err != nil {
		meaning = forEngine
	} else {
		frames, err = e.api.ContainerLogs(ctx, id, request)
	}
	inTime := late.Stop()
	if err == nil && !inTime {
		err = errors.Join(context.DeadlineExceeded, frames.Close())
	}
	if err != nil {
		cancel()
		if !inTime {
			return nil, fmt.Errorf("%s: %w: no answer within %s", op, engine.ErrUnavailable,
				e.timeout)
		}
		return nil, explain(op, err, meaning)
	}
	reader, writer := io.Pipe()
	go func() {
		defer func() { _ = frames.Close() }()
		writer.CloseWithError(explain(op, copyFrames(writer, frames), forContainer))
	}()
	return openLog{reader, cancel}, nil
}

// openLog ends the engine's answer when its reader does.
type openLog struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (l openLog) Close() error {
	l.cancel()
	return l.PipeReader.Close()
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	kept []byte // with up to as much again of what comes before the end
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p...)
	if len(l.kept) > 2*engine.MaxLogsBytes { // seldom: a log has many short lines
		l.kept = l.kept[:copy(l.kept, l.end())]
	}
	return len(p), nil
}

// end returns the last bytes, at most [engine.MaxLogsBytes].
func (l *lastBytes) end() []byte {
	return l.kept[max(0, len(l.kept)-engine.MaxLogsBytes):]
}
