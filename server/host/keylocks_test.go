package host_test

import (
	"context"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestKeyedCreatesDoNotWaitForEachOther: while one create with an Idempotency-Key waits for the
// engine, others with other keys are answered, and one with the same key waits, as long as its
// client does.
func TestKeyedCreatesDoNotWaitForEachOther(t *testing.T) {
	m := newMachine(t).start()
	during := newGate()
	m.engine.failBefore(callVolumeLabels, during.fault)
	slow := spec()
	slow.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", ClaimName: "work"}}
	options := lifecycle.CreateOptions{Owner: "alice", Role: lifecycle.RoleUser, IdempotencyKey: "slow"}
	answer := make(chan lifecycle.Sandbox, 1)
	go func() {
		sandbox, err := m.host.Create(t.Context(), slow, options)
		if err != nil {
			t.Error(err)
		}
		answer <- sandbox
	}()
	during.await(t)
	other := options
	other.IdempotencyKey = "other"
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	if _, err := m.host.Create(ctx, spec(), other); err != nil {
		t.Errorf("another key: %v", err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.host.Create(impatient, slow, options); err == nil {
		t.Error("the same key was answered before the first request was")
	}
	close(during.open)
	first := wait.For(t, "the answer to the first request", answer)
	again, err := m.host.Create(t.Context(), slow, options)
	if err != nil || again.ID != first.ID {
		t.Errorf("the same key once more: %s, %v; want %s", again.ID, err, first.ID)
	}
}
