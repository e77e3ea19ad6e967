package view

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// table has the newest version of each sandbox that this replica has seen: from its watch, and from answers to its own writes, which the
// watch brings later. Versions are in order (KEP-5504: resourceVersions can be compared).
type table struct {
	mu      sync.RWMutex
	entries map[string]*Entry
	// gone has the last versions of resources that were removed, so that a late answer does not bring one back.
	gone    map[string]removal
	changed map[string]chan struct{} // by id, of those that are waited for: closed, and removed, at the next change
}

type removal struct {
	version uint64
	at      time.Time
}

// rememberRemoval is how long a late answer may be late.
const rememberRemoval = 10 * time.Minute

func newTable() *table {
	return &table{entries: make(map[string]*Entry), gone: make(map[string]removal), changed: make(map[string]chan struct{})}
}

// versionOf reads a resourceVersion; 0 for one that is no number, which no API server gives.
func versionOf(text string) uint64 {
	version, _ := strconv.ParseUint(text, 10, 64)
	return version
}

// put adds a version of a sandbox, unless there is a newer one. It returns the newest one, nil when the resource was removed since.
func (t *table) put(e *Entry) *Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := e.Sandbox.ID
	if known := t.entries[id]; known != nil && known.Version >= e.Version {
		return known
	}
	if was, ok := t.gone[id]; ok && was.version >= e.Version {
		return nil
	}
	if known := t.entries[id]; known != nil && known.Batch.UID == e.Batch.UID {
		e.tokens = known.tokens
	}
	delete(t.gone, id)
	t.entries[id] = e
	t.notify(id)
	return e
}

// remove forgets a sandbox whose resource was removed at that version.
func (t *table) remove(id string, version uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.entries[id]; known != nil && known.Version > version {
		return // created again since
	}
	for other, was := range t.gone {
		if now.Sub(was.at) > rememberRemoval {
			delete(t.gone, other)
		}
	}
	t.gone[id] = removal{version, now}
	delete(t.entries, id)
	t.notify(id)
}

// keep removes the sandboxes that are not in a list as of a version.
func (t *table) keep(listed map[string]*Entry, version uint64, now time.Time) {
	for _, e := range t.all() {
		if listed[e.Sandbox.ID] == nil && e.Version <= version {
			t.remove(e.Sandbox.ID, version, now)
		}
	}
}

// notify wakes what waits for a sandbox. The caller holds mu.
func (t *table) notify(id string) {
	if changed := t.changed[id]; changed != nil {
		close(changed)
		delete(t.changed, id)
	}
}

// get returns the newest version of a sandbox, nil if there is none.
func (t *table) get(id string) *Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.entries[id]
}

// follow is get, with a channel that is closed at the sandbox's next change.
func (t *table) follow(id string) (*Entry, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[id]
	if e != nil && t.changed[id] == nil {
		t.changed[id] = make(chan struct{})
	}
	return e, t.changed[id]
}

// all returns every sandbox, newest first, ties by id.
func (t *table) all() []*Entry {
	t.mu.RLock()
	all := make([]*Entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Entry) int {
		if order := b.Sandbox.CreatedAt.Compare(a.Sandbox.CreatedAt); order != 0 {
			return order
		}
		return strings.Compare(a.Sandbox.ID, b.Sandbox.ID)
	})
	return all
}

// await returns when done accepts the sandbox, it is removed, the time is up or ctx ends: the version that was seen last.
func (t *table) await(ctx context.Context, e *Entry, atMost time.Duration, done func(*Entry) bool) *Entry {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		known, changed := t.follow(e.Sandbox.ID)
		if known == nil {
			return e
		}
		if e = known; done(e) {
			return e
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return e
		}
	}
}
