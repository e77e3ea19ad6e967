package lifecycle_test

import (
	"errors"
	"slices"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// TestQuotaOfRepeatedRequests: two requests that create one sandbox take room once, until the last
// of them is done.
func TestQuotaOfRepeatedRequests(t *testing.T) {
	q := &lifecycle.Quota{}
	take := func(id string) (done func(), err error) {
		return q.Take(lifecycle.Request{ID: id, Owner: "alice", MaxSandboxes: 1}, slices.Values([]*lifecycle.Sandbox(nil)))
	}
	first, err := take("a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := take("a")
	if err != nil {
		t.Fatalf("the repeated request: %v", err)
	}
	for _, done := range []func(){first, again} {
		var conflict *lifecycle.Error
		if _, err := take("b"); !errors.As(err, &conflict) || conflict.Kind != lifecycle.KindConflict {
			t.Errorf("another sandbox while one is being created: %v, want a conflict", err)
		}
		done()
	}
	if _, err := take("b"); err != nil {
		t.Errorf("once none is being created: %v", err)
	}
}
