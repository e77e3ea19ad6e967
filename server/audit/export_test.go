package audit

import (
	"errors"
	"os"
)

// Fail puts the log in the condition after a failed sync.
func (l *Log) Fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = errors.New("a sync failed")
}

// Replace puts another file in the place of the log's own, which it closes.
func (l *Log) Replace(file *os.File) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.file
	l.file = file
	return own.Close()
}
