package fair_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"sandbox.internal/runtime/engine/fair"
	"sandbox.internal/test/wait"
)

// waitFor has so many callers of the queue wait, each after the one before, and returns what yields
// the owners in the order of their turns.
func waitFor(t *testing.T, q *fair.Queue, owners ...string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	var callers sync.WaitGroup
	t.Cleanup(func() { cancel(); callers.Wait() })
	served := make(chan string, len(owners))
	for i, owner := range owners {
		callers.Go(func() {
			if q.Take(ctx, owner) == nil {
				served <- owner
			}
		})
		wait.Until(t, "the caller waits", func() bool { return q.Waiting() > i })
	}
	return served
}

func next(t *testing.T, served <-chan string) string {
	t.Helper()
	return wait.For(t, "an owner who gets the turn", served)
}

// TestTurnsByOwner: one who waits behind many of another gets the next turn but one.
func TestTurnsByOwner(t *testing.T) {
	q := fair.New(1, 0)
	if err := q.Take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	served := waitFor(t, q, "a", "a", "a", "b", "c", "a")
	holder := "a"
	for i, want := range []string{"a", "b", "c", "a", "a", "a"} {
		q.Give(holder)
		if holder = next(t, served); holder != want {
			t.Errorf("turn %d went to %s, want %s", i, holder, want)
		}
	}
}

// TestReservedTurns: an owner who takes all that it can leaves turns for those who have none.
func TestReservedTurns(t *testing.T) {
	q := fair.New(4, 2)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	take := func(owner string, want bool) {
		t.Helper()
		ctx := t.Context()
		if !want {
			ctx = over
		}
		if err := q.Take(ctx, owner); (err == nil) != want || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", owner, err)
		}
	}
	take("a", true)
	take("a", true)
	take("a", false)
	take("b", true)
	take("b", false)
	take("", true)
	take("c", false)
	q.Give("a")
	take("a", false) // of two that it may have, one
	take("c", true)
	if q.Pass("c") {
		t.Error("a turn was passed to an owner that does not wait")
	}
	served := waitFor(t, q, "d")
	if !q.Pass("c") || next(t, served) != "d" {
		t.Error("the turn was not passed to who waits")
	}
}
