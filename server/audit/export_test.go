package audit

import "os"

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
