package docker

import (
	"context"
	"slices"
	"sync"
)

// containerLocks are locks of containers, shared or exclusive. Calls that change what a container
// does share its lock; those that need it as it is have the lock alone. The engine itself does not
// keep them apart: a freeze would succeed because a snapshot has just frozen the container, which
// then runs on.
type containerLocks struct {
	mu sync.Mutex
	of map[string]*containerLock // by the id and by the name of a container, while it is locked
}

// containerLock is the lock of one container. Its fields are guarded by containerLocks.mu.
type containerLock struct {
	shared  int           // how many calls share it
	alone   bool          // one call has it alone
	changed chan struct{} // closed by the next change
}

// lockShared waits until no call has the lock of a container alone, and shares it until unlock is
// called.
func (l *containerLocks) lockShared(ctx context.Context, container string) (unlock func(), err error) {
	err = l.await(ctx, container, func(of *containerLock) bool {
		if of.alone {
			return false
		}
		of.shared++
		return true
	})
	return func() { l.change(container, func(of *containerLock) { of.shared-- }) }, err
}

// lock waits until no other call has the locks of a container, which is given by its id and its
// name, and has them alone until unlock is called.
func (l *containerLocks) lock(ctx context.Context, containers ...string) (unlock func(), err error) {
	slices.Sort(containers) // two calls that need the same locks do not wait for one another
	containers = slices.Compact(containers)
	locked := 0
	unlock = func() {
		for _, container := range containers[:locked] {
			l.change(container, func(of *containerLock) { of.alone = false })
		}
	}
	for _, container := range containers {
		err := l.await(ctx, container, func(of *containerLock) bool {
			if of.alone || of.shared > 0 {
				return false
			}
			of.alone = true
			return true
		})
		if err != nil {
			unlock()
			return nil, err
		}
		locked++
	}
	return unlock, nil
}

// await calls try, which succeeds when it returns true, again after each change of the lock.
func (l *containerLocks) await(ctx context.Context, container string, try func(*containerLock) bool) error {
	for {
		l.mu.Lock()
		of := l.of[container]
		if of == nil {
			of = &containerLock{changed: make(chan struct{})}
			l.of[container] = of
		}
		done, changed := try(of), of.changed
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *containerLocks) change(container string, how func(*containerLock)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.of[container]
	how(of)
	close(of.changed)
	of.changed = make(chan struct{})
	if of.shared == 0 && !of.alone {
		delete(l.of, container)
	}
}
