package host_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// TestRandomLives lets clients, the engine and strangers do whatever they like, in any order and at
// once. Every step must be one of the transitions table, which the store of the machine sees to,
// and in the end nothing may be left.
func TestRandomLives(t *testing.T) {
	const workers, steps = 8, 250
	m := newMachine(t).start()
	var mu sync.Mutex
	numbers := random.New(t)
	dice := numbers.IntN
	for _, call := range []string{callEnsureImage, callCreate, callStart, callFreeze, callThaw, callStop, callRemove, callInspect, callWatch} {
		m.engine.failBefore(call, func(context.Context, string) error {
			if dice(20) == 0 {
				return fmt.Errorf("%w: connection reset", engine.ErrUnavailable)
			}
			return nil
		})
		m.engine.failAfter(call, func(context.Context, string) error {
			if dice(40) == 0 {
				return fmt.Errorf("%w: no answer", engine.ErrUnavailable)
			}
			return nil
		})
	}
	var ids []string
	pick := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(ids) == 0 {
			return "none"
		}
		return ids[numbers.IntN(len(ids))]
	}
	step := func() error {
		ctx, id := context.Background(), pick()
		switch dice(12) {
		case 0, 1:
			sandbox, err := m.host.Create(ctx, spec(), lifecycle.CreateOptions{IdempotencyKey: fmt.Sprint("key", dice(100))})
			mu.Lock()
			ids = append(ids, sandbox.ID)
			mu.Unlock()
			return err
		case 2, 3:
			return m.host.Pause(ctx, id)
		case 4, 5:
			return m.host.Resume(ctx, id)
		case 6:
			return m.host.Delete(ctx, id)
		case 7:
			return errorOf(m.host.Renew(ctx, id, time.Now().Add(time.Hour+time.Duration(dice(3600))*time.Second)))
		case 8:
			soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			defer cancel()
			return errorOf(m.host.Locate(soon, id, 80))
		case 9:
			m.engine.happen(container(id), engine.EventFrozen, func(c *engine.Container) {
				if c.Status == engine.StatusRunning {
					c.Status = engine.StatusFrozen
				}
			})
		case 10:
			if dice(4) == 0 {
				m.engine.happen(container(id), engine.EventRemoved, nil)
			} else if dice(3) == 0 {
				m.engine.exit(container(id), dice(2), dice(2) == 0)
			}
		case 11:
			m.engine.hangUp()
		}
		return nil
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range steps {
				if err := step(); err != nil && kindOf(err) == "" {
					t.Errorf("internal error: %v", err)
				}
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		if err := m.host.Delete(t.Context(), id); err != nil && kindOf(err) != lifecycle.KindConflict {
			t.Errorf("delete %s: %v", id, err)
		}
	}
	for _, id := range ids {
		wait.Until(t, "sandbox "+id+" has ended", func() bool { return m.get(id).Status.State.Final() }, func() any { return m.get(id) })
	}
	m.awaitEmpty()
}
