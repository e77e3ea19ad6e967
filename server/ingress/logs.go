package ingress

import (
	"io"
	"sync"
	"time"
)

const (
	// logDelay is how long a line of the log may wait for others: to write each by itself would cost a tenth of a small request.
	logDelay = 50 * time.Millisecond
	// logBatch is how many bytes may wait.
	logBatch = 64 << 10
)

// LogWriter writes the lines of the log in batches. A process that is killed loses those of the last moment. It is safe for concurrent use.
type LogWriter struct {
	to io.Writer

	mu      sync.Mutex
	waiting []byte
	timer   *time.Timer // runs while lines wait
}

// NewLogWriter returns a writer of lines. Close it when nothing is logged any more.
func NewLogWriter(to io.Writer) *LogWriter { return &LogWriter{to: to} }

// Write takes a line. It fails only when an earlier batch has to be written at once and cannot be.
func (l *LogWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, line...)
	switch {
	case len(l.waiting) >= logBatch:
		return len(line), l.flush()
	case l.timer == nil:
		l.timer = time.AfterFunc(logDelay, func() { _ = l.Close() }) // whoever logs has nobody to tell
	}
	return len(line), nil
}

// Close writes what waits. The writer can be used again.
func (l *LogWriter) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flush()
}

// flush writes what waits. The caller holds mu.
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
