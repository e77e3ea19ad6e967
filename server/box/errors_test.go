package box_test

import (
	"errors"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// TestKindOfJoinedErrors: the kind is the same every time.
func TestKindOfJoinedErrors(t *testing.T) {
	for range 50 {
		err := box.Translated(errors.Join(engine.ErrNotRunning, engine.ErrNotFound, engine.ErrUnavailable))
		if !errors.Is(err, lifecycle.ErrBoxUnavailable) || errors.Is(err, lifecycle.ErrNoBox) || errors.Is(err, lifecycle.ErrBoxNotAlive) {
			t.Fatalf("%#v", err)
		}
	}
}
