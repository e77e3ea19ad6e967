package host_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// TestQuotaOfAKey: many creates at once fill it exactly, and what has ended counts no more.
func TestQuotaOfAKey(t *testing.T) {
	const atMost = 5
	m := newMachine(t).start()
	create := func(owner, key string) (lifecycle.Sandbox, error) {
		return m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{Owner: owner, IdempotencyKey: key, MaxSandboxes: atMost})
	}
	first, err := create("one", "key")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int32
	accepted.Store(1)
	var group sync.WaitGroup
	for range 10 * atMost {
		group.Go(func() {
			if _, err := create("one", ""); err == nil {
				accepted.Add(1)
			} else if kindOf(err) != lifecycle.KindConflict {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if accepted.Load() != atMost {
		t.Errorf("%d sandboxes were accepted, want %d", accepted.Load(), atMost)
	}
	if again, err := create("one", "key"); err != nil || again.ID != first.ID {
		t.Errorf("a repeated request returns %s (%v), want %s", again.ID, err, first.ID)
	}
	if _, err := create("two", ""); err != nil {
		t.Errorf("another key: %v", err)
	}
	m.await(first.ID, lifecycle.StateRunning)
	m.engine.exit(container(first.ID), 0, false)
	m.await(first.ID, lifecycle.StateTerminated)
	if _, err := create("one", ""); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	m.host.Close()
	m.start()
	if _, err := create("one", ""); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("after a restart: %v, want a conflict", err)
	}
}

// TestQuotaOfAll: the limit of all keys holds for each of them, and a create that fails takes no
// room.
func TestQuotaOfAll(t *testing.T) {
	m := newMachine(t)
	m.options.MaxSandboxes = 2
	m.start()
	create := func(owner string) error {
		_, err := m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{Owner: owner})
		return err
	}
	m.store.fail(callInsert, errDisk)
	for range 3 {
		if err := create("one"); kindOf(err) != "" {
			t.Fatalf("with a full disk: %v", err)
		}
	}
	m.store.fail(callInsert, nil)
	for _, owner := range []string{"one", "two"} {
		if err := create(owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := create("three"); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("the third: %v, want a conflict", err)
	}
}
