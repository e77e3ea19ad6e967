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
	for _, call := range []string{callEnsureImage, callCreate, callStart, callFreeze, callThaw, callStop, callRemove, callInspect, callWatch,
		callTakeSnapshot, callRemoveSnapshot, callListSnapshots, callRollback} {
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
	var ids, snapshots []string
	pickOf := func(list *[]string) string {
		mu.Lock()
		defer mu.Unlock()
		if len(*list) == 0 {
			return "none"
		}
		return (*list)[numbers.IntN(len(*list))]
	}
	pick, pickSnapshot := func() string { return pickOf(&ids) }, func() string { return pickOf(&snapshots) }
	step := func() error {
		ctx, id := context.Background(), pick()
		switch dice(16) {
		case 0, 1:
			sandbox, err := m.host.Create(ctx, spec(), lifecycle.CreateOptions{IdempotencyKey: fmt.Sprint("key", dice(100))})
			mu.Lock()
			ids = append(ids, sandbox.ID)
			mu.Unlock()
			return err
		case 2, 3:
			if dice(3) == 0 {
				return m.host.Suspend(ctx, id)
			}
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
		case 12, 13:
			snapshot, err := m.host.TakeSnapshot(ctx, id, files())
			mu.Lock()
			snapshots = append(snapshots, snapshot.ID)
			mu.Unlock()
			return err
		case 14:
			return m.host.Rollback(ctx, id, pickSnapshot())
		case 15:
			if dice(2) == 0 {
				return m.host.DeleteSnapshot(ctx, pickSnapshot())
			}
			return errorOf(m.host.Create(ctx, from(pickSnapshot()), lifecycle.CreateOptions{}))
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
	for _, sandbox := range m.sandboxes() {
		ids = append(ids, sandbox.ID)
	}
	for _, id := range ids {
		if err := m.host.Delete(t.Context(), id); err != nil && kindOf(err) != lifecycle.KindConflict {
			t.Errorf("delete %s: %v", id, err)
		}
	}
	for _, id := range ids {
		wait.Until(t, "sandbox "+id+" has ended", func() bool { return m.get(id).Status.State.Final() }, func() any { return m.get(id) })
	}
	m.awaitEmpty()
	listing, err := m.host.Snapshots(t.Context(), lifecycle.SnapshotFilter{}, lifecycle.Page{Number: 1, Size: lifecycle.MaxPageSize})
	if err != nil {
		t.Fatal(err)
	}
	for _, snapshot := range listing.Items {
		if err := m.host.DeleteSnapshot(t.Context(), snapshot.ID); err != nil && kindOf(err) != lifecycle.KindNoSnapshot {
			t.Errorf("delete snapshot %s: %v", snapshot.ID, err)
		}
	}
	wait.Until(t, "no snapshot is left", func() bool {
		m.host.Sweep() // what a call has made that seemed to have failed
		return len(m.host.CountSnapshots()) == 0 && len(m.engine.snapshotNames()) == 0
	}, func() any { return []any{m.host.CountSnapshots(), m.engine.snapshotNames()} })
}

// sandboxes returns all that there are.
func (m *machine) sandboxes() []lifecycle.Sandbox {
	m.t.Helper()
	listing, err := m.host.List(context.Background(), lifecycle.Filter{}, lifecycle.Page{Number: 1, Size: lifecycle.MaxPageSize})
	if err != nil {
		m.t.Fatal(err)
	}
	return listing.Items
}
