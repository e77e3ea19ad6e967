package eventlog

import (
	"slices"
	"sync"
	"time"
)

// How ended logs are forgotten: the oldest first, and none that ended within retainAtLeast unless
// room runs short.
const (
	retainLogs    = 1000
	retainMemory  = 64 << 20 // bytes that ended logs hold in memory together
	retainDisk    = 4 << 30  // and in files
	retainAtLeast = time.Minute
)

// Retention decides how long logs that have ended can still be read, each with its owner, a T.
type Retention[T any] struct {
	forget func(T)

	mu           sync.Mutex
	kept         []kept[T] // oldest first
	memory, disk int64     // what they hold together
}

type kept[T any] struct {
	owner        T
	log          *Log
	ended        time.Time
	memory, disk int64 // what has ended holds for good
}

// NewRetention returns a retention that has forget called with the owner of each log that is no
// longer kept.
func NewRetention[T any](forget func(T)) *Retention[T] { return &Retention[T]{forget: forget} }

// Add keeps a log that has ended. Logs that are too much are closed, after their owners have been
// forgotten. Closing one that holds a large file takes its time.
func (r *Retention[T]) Add(owner T, log *Log, ended time.Time) {
	for _, k := range r.add(owner, log, ended) {
		r.forget(k.owner)
		k.log.Close()
	}
}

// add keeps a log and returns those that are too much.
func (r *Retention[T]) add(owner T, log *Log, ended time.Time) []kept[T] {
	k := kept[T]{owner: owner, log: log, ended: ended}
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
