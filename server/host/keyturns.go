package host

import (
	"context"
	"sync"
)

// keyTurn names an Idempotency-Key of an owner.
type keyTurn struct{ owner, key string }

// keyTurns serialises creates with the same Idempotency-Key. The zero value is ready to use.
type keyTurns struct {
	mu    sync.Mutex
	taken map[keyTurn]chan struct{} // closed when the turn is over
}

// take waits until no other create holds the key. The caller calls done when its result is known.
// It returns ctx's error when ctx ends first.
func (k *keyTurns) take(ctx context.Context, turn keyTurn) (done func(), err error) {
	for {
		k.mu.Lock()
		over, taken := k.taken[turn]
		if !taken {
			if k.taken == nil {
				k.taken = make(map[keyTurn]chan struct{})
			}
			over = make(chan struct{})
			k.taken[turn] = over
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.taken, turn)
				close(over)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
