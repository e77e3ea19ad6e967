package host

import (
	"context"
	"sync"
)

// ownedKey names an Idempotency-Key of an owner.
type ownedKey struct{ owner, key string }

// keyLocks serialises creates with the same Idempotency-Key. The zero value is ready to use.
type keyLocks struct {
	mu   sync.Mutex
	held map[ownedKey]chan struct{} // closed when the lock is released
}

// lock waits until no other create holds the key. The caller calls unlock when its result is known.
// It returns ctx's error when ctx ends first.
func (k *keyLocks) lock(ctx context.Context, key ownedKey) (unlock func(), err error) {
	for {
		k.mu.Lock()
		released, held := k.held[key]
		if !held {
			if k.held == nil {
				k.held = make(map[ownedKey]chan struct{})
			}
			released = make(chan struct{})
			k.held[key] = released
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.held, key)
				close(released)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
