package registry_test

import (
	"context"
	"slices"
	"testing"

	"sandbox.internal/execd/internal/registry"
	"sandbox.internal/test/wait"
)

func TestValues(t *testing.T) {
	var r registry.Registry[int]
	if _, ok := r.Get("a"); ok || len(r.All()) != 0 {
		t.Error("an empty registry has values")
	}
	for i, id := range []string{"a", "b"} {
		if !r.Reserve() || r.Add(id, i+1) {
			t.Fatal("the registry is stopped")
		}
	}
	if value, ok := r.Get("b"); !ok || value != 2 {
		t.Errorf("got %d, %v", value, ok)
	}
	r.Remove("a")
	if got := r.All(); !slices.Equal(got, []int{2}) {
		t.Errorf("got %v", got)
	}
}

// TestStop: what runs is interrupted, and killed when the context ends; what was being started is
// handed to its starter, and nothing starts any more.
func TestStop(t *testing.T) {
	var r registry.Registry[string]
	for range 3 { // the last one is added too late
		r.Reserve()
	}
	r.Add("patient", "patient")
	r.Add("obedient", "obedient")
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := make(chan string, 2)
	var killed []string
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.Stop(ctx, func(value string) { interrupted <- value }, func(value string) {
			if killed = append(killed, value); value == "patient" {
				r.Done()
			}
		})
	}()
	for range 2 {
		if wait.For(t, "an interrupt", interrupted) == "obedient" {
			r.Done()
		}
	}
	if r.Reserve() {
		t.Error("a stopped registry permits a start")
	}
	if !r.Add("late", "late") {
		t.Error("a value that was added late does not know that the registry is stopped")
	}
	r.Done()
	cancel()
	wait.For(t, "the stop of the registry", stopped)
	slices.Sort(killed)
	if !slices.Equal(killed, []string{"obedient", "patient"}) {
		t.Errorf("killed %q", killed)
	}
}
