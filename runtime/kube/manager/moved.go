package manager

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// movedLock is the lock of an election whose lease was in another namespace before: it is not
// acquired while a controller of an earlier version holds the lease there, or two would lead at a
// time during an upgrade. It may be used by one goroutine at a time, as every lock.
type movedLock struct {
	resourcelock.Interface
	before resourcelock.Interface // nil once it is free: whoever knows of it waits here, too
	now    func() time.Time

	mu    sync.Mutex
	seen  []byte    // the record there, as it was read last
	since time.Time // when it was first read like that
}

// Create implements resourcelock.Interface.
func (l *movedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.free(ctx); err != nil {
		return err
	}
	return l.Interface.Create(ctx, record)
}

// Update implements resourcelock.Interface.
func (l *movedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.free(ctx); err != nil {
		return err
	}
	return l.Interface.Update(ctx, record)
}

// free returns an error while the earlier lease is held: it was renewed within its duration, by
// this machine's clock.
func (l *movedLock) free(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before == nil {
		return nil
	}
	record, raw, err := l.before.Get(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), err == nil && record.HolderIdentity == "":
		l.before = nil
		return nil
	case err != nil:
		return fmt.Errorf("the lease of earlier versions: %w", err)
	}
	if !bytes.Equal(raw, l.seen) {
		l.seen, l.since = raw, l.now()
	}
	if l.now().Sub(l.since) < time.Duration(record.LeaseDurationSeconds)*time.Second {
		return fmt.Errorf("%s holds the lease %s", record.HolderIdentity, l.before.Describe())
	}
	l.before = nil
	return nil
}
