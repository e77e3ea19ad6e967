package docker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"

	"sandbox.internal/test/wait"
)

// TestExclusive: what snapshots have of the disk is what no earlier one has, and grows when that is
// gone.
func TestExclusive(t *testing.T) {
	at := time.Now()
	made := func(name string, after time.Duration, layers ...keptLayer) kept {
		return kept{Name: name, Created: at.Add(after), Layers: layers}
	}
	one, two := keptLayer{"1", 10}, keptLayer{"2", 5}
	a, same, b := made("a", 1, one), made("same", 2, one), made("b", 3, one, two)
	for _, tt := range []struct {
		all  []kept
		want map[string]int64
	}{
		{[]kept{b, same, a}, map[string]int64{"a": 10, "same": 0, "b": 5}},
		{[]kept{b, same}, map[string]int64{"same": 10, "b": 5}},
		{[]kept{b}, map[string]int64{"b": 15}},
	} {
		for _, s := range describeAll(tt.all) {
			if s.Exclusive != tt.want[s.Name] {
				t.Errorf("of %d snapshots %s has %d bytes of its own, want %d", len(tt.all), s.Name, s.Exclusive, tt.want[s.Name])
			}
		}
	}
}

// TestContainerLocks: a lock that one call has alone is shared by none, and is had once none shares
// it.
func TestContainerLocks(t *testing.T) {
	locks := containerLocks{of: map[string]*containerLock{}}
	unlockShared, err := locks.lockShared(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan func(), 1)
	go func() {
		unlock, err := locks.lock(t.Context(), "name", "id")
		if err != nil {
			t.Error(err)
		}
		locked <- unlock
	}()
	unlockShared()
	unlock := wait.For(t, "the lock of the container", locked)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, container := range []string{"name", "id"} {
		if _, err := locks.lockShared(soon, container); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: a lock that one call has alone is shared: %v", container, err)
		}
	}
	unlock()
	for _, container := range []string{"name", "id"} {
		unlock, err := locks.lockShared(t.Context(), container)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
	if len(locks.of) > 0 {
		t.Errorf("%d locks are left", len(locks.of))
	}
}

// TestUnseen: a watcher does not see the freeze of a snapshot, and sees the next one.
func TestUnseen(t *testing.T) {
	u := unseen{watchers: map[*unseenBy]bool{}, frozen: map[string]bool{}}
	before, leave := u.watch()
	defer leave()
	end := u.begin("c")
	during, leaveToo := u.watch()
	defer leaveToo()
	if !u.now("c") {
		t.Error("the container is not known to be frozen")
	}
	end(true)
	hides := func(w *unseenBy, action events.Action) bool {
		return u.hides(w, events.Message{Action: action, Actor: events.Actor{ID: "c"}})
	}
	for name, w := range map[string]*unseenBy{"before": before, "during": during} {
		if name == "before" && !hides(w, events.ActionPause) {
			t.Errorf("a watcher from %s sees the freeze", name)
		}
		if !hides(w, events.ActionUnPause) {
			t.Errorf("a watcher from %s sees the thaw", name)
		}
		if hides(w, events.ActionPause) || hides(w, events.ActionUnPause) || hides(w, events.ActionDie) {
			t.Errorf("a watcher from %s does not see what comes then", name)
		}
	}
	end = u.begin("c")
	end(false)
	if hides(before, events.ActionPause) {
		t.Error("a freeze of another is hidden")
	}
}

// TestHidden: the images of snapshots and of commits are hidden, and none that only has their
// labels.
func TestHidden(t *testing.T) {
	for _, tt := range []struct {
		names, digests []string
		label          string
		want           bool
	}{
		{names: []string{"sandbox.invalid/snapshot:x"}, label: snapshotLabel, want: true},
		{names: []string{"other:1", "sandbox.invalid/removed:x"}, want: true},
		{label: commitLabel, want: true},
		{names: []string{"<none>:<none>"}, digests: []string{"<none>@<none>"}, label: commitLabel, want: true},
		{names: []string{"registry.example/image:1"}, label: snapshotLabel},
		{names: []string{"registry.example/image:1"}, label: commitLabel},
		{digests: []string{"registry.example/image@sha256:0"}, label: commitLabel},
		{},
	} {
		if got := hidden(tt.names, tt.digests, map[string]string{tt.label: "any"}); got != tt.want {
			t.Errorf("an image with the names %q, the digests %q and the label %q: hidden is %v", tt.names, tt.digests, tt.label, got)
		}
	}
}
