package eventlog

import (
	"sync"
	"time"
)

// How ended logs are forgotten: the oldest first, and none that ended within retainAtLeast unless room runs short.
const (
	retainLogs    = 1000
	retainMemory  = 64 << 20 // bytes that ended logs hold in memory together
	retainDisk    = 4 << 30  // and in files
	retainAtLeast = time.Minute
)

// Retention decides how long logs that have ended can still be read. The zero value is ready for use.
type Retention struct {
	mu   sync.Mutex
	kept []kept // oldest first
}

type kept struct {
	log    *Log
	ended  time.Time
	forget func()
}

// Add keeps a log that has ended. Logs that are too much are closed, after their forget has been called.
func (r *Retention) Add(log *Log, ended time.Time, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, kept{log, ended, forget})
	var memory, disk int64
	for _, k := range r.kept {
		inMemory, onDisk := k.log.Held()
		memory, disk = memory+inMemory, disk+onDisk
	}
	for len(r.kept) > 1 {
		oldest := r.kept[0]
		recent := ended.Sub(oldest.ended) < retainAtLeast
		if memory <= retainMemory && disk <= retainDisk && (len(r.kept) <= retainLogs || recent) {
			return
		}
		inMemory, onDisk := oldest.log.Held()
		memory, disk = memory-inMemory, disk-onDisk
		oldest.forget()
		oldest.log.Close()
		r.kept = r.kept[1:]
	}
}
