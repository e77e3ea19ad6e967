package box_test

import (
	"errors"
	"fmt"
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

// TestWrongTarget: a volume that the image has no place for is named by its field.
func TestWrongTarget(t *testing.T) {
	volumes := []lifecycle.Volume{{MountPath: "/a"}, {MountPath: "/x/y"}}
	cause := fmt.Errorf("create: %w", &engine.TargetError{Target: "/x/y", Rule: "leads elsewhere"})
	var failure *lifecycle.BoxFailure
	if err := box.WrongTarget(volumes, cause); !errors.As(err, &failure) || failure.Message != `volumes[1].mountPath: "/x/y" leads elsewhere` ||
		failure.Reason != lifecycle.ReasonContainerError {
		t.Errorf("%#v", err)
	}
	if err := box.WrongTarget(volumes[:1], cause); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("the daemon's own: %v", err)
	}
}
