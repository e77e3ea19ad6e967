package audit

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// syncPeriodically makes lines durable: at once when a caller waits, all that were written by then,
// and otherwise after a delay.
func (l *Log) syncPeriodically() {
	defer close(l.stopped)
	ticker := time.NewTicker(syncDelay)
	defer ticker.Stop()
	for {
		idle := false
		select {
		case <-l.pending:
		case <-ticker.C:
			idle = true
		}
		l.syncing.Lock()
		l.mu.Lock()
		file, target, closed := l.file, l.wrote, l.closed
		pending := l.failed == nil && l.synced < l.wrote && (l.wanted || idle || closed)
		l.wanted = false
		l.mu.Unlock()
		if pending {
			err := datasync(int(file.Fd()))
			l.mu.Lock()
			if err != nil {
				// The kernel drops pages that it could not write: the file may have a hole now,
				// whatever the next sync returns.
				l.failed = fmt.Errorf(
					"audit log: %s cannot be synced: %w; it is taken up again at SIGHUP", l.path,
					err)
				l.logger.Error().Err(err).Msg(
					"the audit log cannot be synced: requests that change something are refused")
			} else {
				l.synced = target
			}
			l.announce()
			l.mu.Unlock()
		}
		l.syncing.Unlock()
		if closed {
			return
		}
	}
}

// requestSync asks for a sync. The caller holds mu.
func (l *Log) requestSync() {
	select {
	case l.pending <- struct{}{}:
	default:
	}
}

// announce releases the waiting callers. The caller holds mu.
func (l *Log) announce() {
	close(l.settle)
	l.settle = make(chan struct{})
}

// markSynced notes that everything written is durable. The caller holds mu.
func (l *Log) markSynced() {
	l.synced = l.wrote
	l.announce()
}

// await returns when the line is durable, or cannot become so.
func (l *Log) await(ticket uint64) error {
	for over := false; ; {
		l.mu.Lock()
		synced, failed, settle := l.synced, l.failed, l.settle
		l.mu.Unlock()
		switch {
		case synced >= ticket:
			return nil
		case failed != nil:
			return failed
		case over:
			return errClosed
		}
		select {
		case <-settle:
		case <-l.stopped:
			over = true // what the last sync came to is known by now
		}
	}
}

func datasync(fd int) error {
	for {
		if err := unix.Fdatasync(fd); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
