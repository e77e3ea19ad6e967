package e2b

import (
	"testing"
	"time"

	"sandbox.internal/execd/internal/watch"
	"sandbox.internal/test/wait"
)

// TestWatcherExpires: a watcher that no client reads is ended, and one that is read is kept.
func TestWatcherExpires(t *testing.T) {
	t.Parallel()
	kept := watchers{known: make(map[string]*watcher)}
	add := func(id string) *watcher {
		t.Helper()
		opened, err := watch.Open(watch.Options{Path: t.TempDir(), Clock: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		added := &watcher{watch: opened}
		if !kept.add(t.Context(), id, added) {
			t.Fatal("there are too many")
		}
		return added
	}
	add("unread").expire.Reset(0)
	wait.Until(t, "the watcher is gone", func() bool {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return len(kept.known) == 0 // find would keep it for another while
	})
	read := add("read")
	if kept.find("read") == nil || !read.expire.Stop() {
		t.Error("a watcher that was read does not expire later")
	}
	if !kept.remove("read") || kept.remove("read") {
		t.Error("a watcher is removed once")
	}
}
