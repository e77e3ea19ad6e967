package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/runtime/engine"
)

// TestRemoveWithoutKeeper: a container can be removed when the keeper was killed and its program is gone.
func TestRemoveWithoutKeeper(t *testing.T) {
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
	if err := e.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	closeEngine(t, e)
	s.Keeper = installed
	s.checkNothingLeft(t)
}
