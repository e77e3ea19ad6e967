package cluster

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// entry is a sandbox as one version of its resource says. Nobody changes it.
type entry struct {
	version uint64
	batch   *v1alpha1.BatchSandbox
	record  record
	sandbox lifecycle.Sandbox
	tokens  *tokens // shared with the other versions
}

// table has the newest version of each sandbox that this replica knows: from its watch, and from the answers to what it wrote itself, which
// the watch brings later. Versions tell which is newer (KEP-5504: resourceVersions can be compared).
type table struct {
	mu      sync.RWMutex
	entries map[string]*entry
	// gone has the last versions of resources that were removed, so that a late answer does not bring one back.
	gone    map[string]removal
	changed chan struct{} // closed, and replaced, at every change
}

type removal struct {
	version uint64
	at      time.Time
}

// rememberRemoval is how long a late answer may be late.
const rememberRemoval = 10 * time.Minute

func newTable() *table {
	return &table{entries: make(map[string]*entry), gone: make(map[string]removal), changed: make(chan struct{})}
}

// versionOf reads a resourceVersion; 0 for one that is no number, which no API server gives.
func versionOf(text string) uint64 {
	version, _ := strconv.ParseUint(text, 10, 64)
	return version
}

// put takes up a version of a sandbox, unless a newer one is known. It returns the newest one, nil when it is known to be removed.
func (t *table) put(e *entry) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := e.sandbox.ID
	if known := t.entries[id]; known != nil && known.version >= e.version {
		return known
	}
	if was, ok := t.gone[id]; ok && was.version >= e.version {
		return nil
	}
	if known := t.entries[id]; known != nil && known.batch.UID == e.batch.UID {
		e.tokens = known.tokens
	}
	delete(t.gone, id)
	t.entries[id] = e
	t.tell()
	return e
}

// remove forgets a sandbox whose resource was removed at that version.
func (t *table) remove(id string, version uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.entries[id]; known != nil && known.version > version {
		return // made anew since
	}
	for other, was := range t.gone {
		if now.Sub(was.at) > rememberRemoval {
			delete(t.gone, other)
		}
	}
	t.gone[id] = removal{version, now}
	delete(t.entries, id)
	t.tell()
}

// keep removes the sandboxes that a list as of a version does not have.
func (t *table) keep(listed map[string]*entry, version uint64, now time.Time) {
	for _, e := range t.all() {
		if listed[e.sandbox.ID] == nil && e.version <= version {
			t.remove(e.sandbox.ID, version, now)
		}
	}
}

// tell wakes who waits. The caller holds mu.
func (t *table) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// get returns what is known of a sandbox, nil if nothing is, and a channel that is closed at the next change.
func (t *table) get(id string) (*entry, <-chan struct{}) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.entries[id], t.changed
}

// all returns every sandbox, newest first, ties by id.
func (t *table) all() []*entry {
	t.mu.RLock()
	all := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b *entry) int {
		if order := b.sandbox.CreatedAt.Compare(a.sandbox.CreatedAt); order != 0 {
			return order
		}
		return strings.Compare(a.sandbox.ID, b.sandbox.ID)
	})
	return all
}

// await returns when done says so, the sandbox is forgotten, the time is up or ctx ends: what was known last.
func (t *table) await(ctx context.Context, e *entry, atMost time.Duration, done func(*entry) bool) *entry {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		known, changed := t.get(e.sandbox.ID)
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
