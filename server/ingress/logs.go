package ingress

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// logDelay is how long the line of a request may wait for others: a write of its own would take
	// a tenth of the time of a small request.
	logDelay = 20 * time.Millisecond
	// logBatch is how many bytes of lines may wait.
	logBatch = 64 << 10
)

// LogWriter writes the lines of the log in order, those at level info and below in batches, at most
// 20 ms late. A process that is killed loses those of the last 20 ms; a line at a higher level is
// written at once, after the waiting ones. It is safe for concurrent use.
type LogWriter struct {
	to io.Writer

	mu      sync.Mutex
	waiting []byte
	timer   *time.Timer // runs while lines wait
}

var _ zerolog.LevelWriter = (*LogWriter)(nil)

// NewLogWriter returns a LogWriter. Close it after the last line.
func NewLogWriter(to io.Writer) *LogWriter { return &LogWriter{to: to} }

// Write implements [io.Writer]. The line is written at once.
func (l *LogWriter) Write(line []byte) (int, error) { return l.WriteLevel(zerolog.NoLevel, line) }

// WriteLevel implements [zerolog.LevelWriter]. It fails only when lines have to be written at once
// and cannot be.
func (l *LogWriter) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, line...)
	switch {
	case level > zerolog.InfoLevel, len(l.waiting) >= logBatch:
		return len(line), l.flush()
	case l.timer == nil:
		// there is no caller to return it to
		l.timer = time.AfterFunc(logDelay, func() { _ = l.Close() })
	}
	return len(line), nil
}

// Close writes the waiting lines. The writer can be used again.
func (l *LogWriter) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flush()
}

// flush writes the waiting lines. The caller holds mu.
func (l *LogWriter) flush() error {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.waiting) == 0 {
		return nil
	}
	_, err := l.to.Write(l.waiting)
	l.waiting = l.waiting[:0]
	return err
}
