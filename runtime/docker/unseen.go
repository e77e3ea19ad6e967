package docker

import (
	"sync"

	"github.com/docker/docker/api/types/events"
)

// unseen are the freezes of snapshots, which watchers do not see: the engine reports them as any
// other, with a pause and an unpause of the container.
type unseen struct {
	mu       sync.Mutex
	watchers map[*unseenBy]bool
	frozen   map[string]bool // the containers whose files are being kept, by id
}

// unseenBy is what one watcher has not been sent yet of such freezes. It is guarded by unseen.mu.
type unseenBy struct{ expected map[string]bool }

// begin says that the container is about to be frozen and thawed. end says whether it was: then
// both events are on their way to the watchers, or have come.
func (u *unseen) begin(container string) (end func(was bool)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.frozen[container] = true
	for w := range u.watchers {
		w.expected[container] = true
	}
	return func(was bool) {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.frozen, container)
		for w := range u.watchers {
			if !was {
				delete(w.expected, container)
			}
		}
	}
}

// now reports whether the container is frozen for a snapshot, or may be.
func (u *unseen) now(container string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.frozen[container]
}

// watch adds a watcher, until leave is called.
func (u *unseen) watch() (w *unseenBy, leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	w = &unseenBy{expected: map[string]bool{}}
	for container := range u.frozen {
		w.expected[container] = true
	}
	u.watchers[w] = true
	return w, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.watchers, w)
	}
}

// hides reports whether the watcher does not see the event. The thaw ends what is expected: the
// next freeze is another's.
func (u *unseen) hides(w *unseenBy, message events.Message) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	container := message.Actor.ID
	if !w.expected[container] {
		return false
	}
	switch message.Action {
	case events.ActionPause:
		return true
	case events.ActionUnPause:
		delete(w.expected, container)
		return true
	case events.ActionDie, events.ActionDestroy:
		delete(w.expected, container)
	}
	return false
}
