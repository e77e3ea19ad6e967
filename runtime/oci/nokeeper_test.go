package oci_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// TestWithoutKeeper: when the keeper was killed and its program is gone, a container can be
// removed, and the engine says that it is not available.
func TestWithoutKeeper(t *testing.T) {
	t.Parallel()
	s := newSite(t, "crun")
	program, err := os.ReadFile(s.Keeper)
	if err != nil {
		t.Fatal(err)
	}
	installed := s.Keeper
	s.Keeper = filepath.Join(t.TempDir(), "sandbox-keeper")
	if err := os.WriteFile(s.Keeper, program, 0o700); err != nil {
		t.Fatal(err)
	}
	e := s.mustOpen(t)
	spec := probe(loadProbe(t, e), "sleep")
	spec.Network = engine.NetworkOwn
	id := start(t, e, spec)
	if err := os.Remove(s.Keeper); err != nil {
		t.Fatal(err)
	}
	killKeeper(t, s)
	wait.Until(t, "the engine notices that the keeper is gone", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = e.Info(ctx)
		return errors.Is(err, engine.ErrUnavailable)
	}, func() any { return err })
	if err := e.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	closeEngine(t, e)
	s.Keeper = installed
	s.checkNothingLeft(t)
}
