package lifecycle_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// TestEnded: over the budget the oldest of the owner that has the most are forgotten.
func TestEnded(t *testing.T) {
	e := lifecycle.NewEnded[string](10)
	add := func(name, owner string, cost int, want ...string) {
		t.Helper()
		if got := e.Add(name, owner, cost); !slices.Equal(got, want) {
			t.Errorf("add %s: %v are forgotten, want %v", name, got, want)
		}
	}
	add("a1", "a", 3)
	add("a1", "a", 9) // the same again
	add("b1", "b", 2)
	add("b2", "b", 2)
	add("a2", "a", 3)
	add("b3", "b", 1, "a1")
	add("b4", "b", 2)
	add("b5", "b", 2, "b1")
	add("b1", "b", 2) // which is about to be forgotten
	e.Remove("b2")
	e.Remove("b1") // forgotten already
	add("c1", "c", 2)
	add("c2", "c", 11, "c1", "c2") // more than there is room for
	add("a3", "a", 2)
	add("a4", "a", 1, "a2")
}
