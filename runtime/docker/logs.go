package docker

import (
	"bytes"
	"context"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
)

// maxLogBytes is the contract's limit on what Logs returns.
const maxLogBytes = 64 << 10

// Logs implements [engine.Engine]. What is cut off is the beginning; bytes that are not UTF-8 are replaced.
func (e *Engine) Logs(ctx context.Context, id string, tail int) (string, error) {
	if tail <= 0 {
		return "", nil
	}
	var last lastBytes
	err := e.call(ctx, "read the log of container "+id, forContainer, func(ctx context.Context) error {
		stream, err := e.api.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(tail)})
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		_, err = stdcopy.StdCopy(&last, &last, stream)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.ToValidUTF8(string(last.kept), "?"), nil
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	kept []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p...)
	if over := len(l.kept) - maxLogBytes; over > 0 {
		l.kept = bytes.Clone(l.kept[over:])
	}
	return len(p), nil
}
