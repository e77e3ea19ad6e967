package eventlog

import (
	"slices"
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
	mu           sync.Mutex
	kept         []kept // oldest first
	memory, disk int64  // what they hold together
}

type kept struct {
	log          *Log
	ended        time.Time
	memory, disk int64 // what has ended holds for good
	forget       func()
}

// Add keeps a log that has ended. Logs that are too much are closed, after their forget has been called. Closing one that holds a large
// file takes its time.
func (r *Retention) Add(log *Log, ended time.Time, forget func()) {
	for _, k := range r.add(log, ended, forget) {
		k.forget()
		k.log.Close()
	}
}

// add keeps a log and returns those that are too much.
func (r *Retention) add(log *Log, ended time.Time, forget func()) []kept {
	k := kept{log: log, ended: ended, forget: forget}
	k.memory, k.disk = log.Held()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, k)
	r.memory, r.disk = r.memory+k.memory, r.disk+k.disk
	excess := 0
	for ; len(r.kept)-excess > 1; excess++ {
		oldest := r.kept[excess]
		recent := ended.Sub(oldest.ended) < retainAtLeast
		if r.memory <= retainMemory && r.disk <= retainDisk && (len(r.kept)-excess <= retainLogs || recent) {
			break
		}
		r.memory, r.disk = r.memory-oldest.memory, r.disk-oldest.disk
	}
	forgotten := slices.Clone(r.kept[:excess])
	r.kept = slices.Delete(r.kept, 0, excess)
	return forgotten
}
