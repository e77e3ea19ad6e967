package pool

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lease is the lock of a leader election that records when it was renewed. Give it to the manager
// as LeaderElectionResourceLockInterface, and to Setup. A controller that was suspended, and has
// not read yet that another one leads by now, finds out before it writes.
type Lease struct {
	resourcelock.Interface
	limit time.Duration
	start time.Time
	until atomic.Int64 // in nanoseconds after start, on the monotonic clock
}

// NewLease wraps a lock. limit is how long after a renewal was asked for this process takes itself
// for the leader; it must be shorter than the duration of the lease, and is usually the manager's
// renew deadline.
func NewLease(lock resourcelock.Interface, limit time.Duration) *Lease {
	return &Lease{Interface: lock, limit: limit, start: time.Now()}
}

// Create makes the record, and this process the leader.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	asked := time.Since(l.start)
	return l.recordRenewal(asked, record, l.Interface.Create(ctx, record))
}

// Update renews the lease, or gives it up.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	asked := time.Since(l.start)
	return l.recordRenewal(asked, record, l.Interface.Update(ctx, record))
}

func (l *Lease) recordRenewal(asked time.Duration, record resourcelock.LeaderElectionRecord,
	err error) error {
	switch {
	case record.HolderIdentity != l.Identity():
		l.until.Store(0) // given up, whatever the answer was
	case err == nil:
		l.until.Store(int64(asked + l.limit))
	}
	return err
}

// Held reports whether no other controller can be the leader yet. Without an election, that is with
// nil, it is true.
func (l *Lease) Held() bool {
	return l == nil || int64(time.Since(l.start)) < l.until.Load()
}
