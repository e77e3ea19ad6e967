package view

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandbox.internal/server/lifecycle"
)

// table has the newest version of each sandbox that this replica has seen: from its watch, and from
// answers to its own writes, which the watch brings later. Versions are in order (KEP-5504:
// resourceVersions can be compared).
type table struct {
	mu      sync.RWMutex
	entries map[string]*Entry
	// orders have the sandboxes of each owner, and of all under allOwners, oldest first: a new one
	// is appended.
	orders map[string][]*Entry
	counts map[string]map[lifecycle.State]int // likewise
	// gone has the last versions of resources that were removed, so that a late answer does not
	// bring one back; leaving has them in the order of their removal.
	gone    map[string]removal
	leaving []removal
	changed map[string]chan struct{} // by id, of those that are waited for: closed, and removed, at the next change
}

// allOwners is no owner's name: names of keys are visible characters.
const allOwners = "\x00"

type removal struct {
	id      string
	version uint64
	at      time.Time
}

// rememberRemoval is how long a late answer may be late.
const rememberRemoval = 10 * time.Minute

func newTable() *table {
	return &table{
		entries: make(map[string]*Entry), orders: make(map[string][]*Entry), counts: make(map[string]map[lifecycle.State]int),
		gone: make(map[string]removal), changed: make(map[string]chan struct{}),
	}
}

// place takes a sandbox in the place of its version before, nil for none; an after of nil takes it
// away. The caller holds mu.
func (t *table) place(before, after *Entry) {
	for i, e := range []*Entry{before, after} {
		if e == nil {
			continue
		}
		for _, owner := range []string{allOwners, e.Sandbox.Owner} {
			order := t.orders[owner]
			at, found := slices.BinarySearchFunc(order, e, oldestFirst)
			switch {
			case i == 0 && found:
				order = slices.Delete(order, at, at+1)
			case i == 1:
				order = slices.Insert(order, at, e)
			}
			t.orders[owner] = order
			if t.counts[owner] == nil {
				t.counts[owner] = make(map[lifecycle.State]int)
			}
			t.counts[owner][e.Sandbox.Status.State] += 2*i - 1
			if len(order) == 0 {
				delete(t.orders, owner)
				delete(t.counts, owner)
			}
		}
	}
}

// oldestFirst orders sandboxes by their creation; of several at once the last id is first.
func oldestFirst(a, b *Entry) int {
	if order := a.Sandbox.CreatedAt.Compare(b.Sandbox.CreatedAt); order != 0 {
		return order
	}
	return strings.Compare(b.Sandbox.ID, a.Sandbox.ID)
}

// versionOf reads a resourceVersion; 0 for one that is no number, which no API server gives.
func versionOf(text string) uint64 {
	version, _ := strconv.ParseUint(text, 10, 64)
	return version
}

// put adds a version of a sandbox, unless there is a newer one. It returns the newest one, nil when
// the resource was removed since.
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
	t.place(t.entries[id], e)
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
	for len(t.leaving) > 0 && now.Sub(t.leaving[0].at) > rememberRemoval {
		if was := t.leaving[0]; t.gone[was.id] == was {
			delete(t.gone, was.id)
		}
		t.leaving = t.leaving[1:]
	}
	t.gone[id] = removal{id, version, now}
	t.leaving = append(t.leaving, t.gone[id])
	t.place(t.entries[id], nil)
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
	defer t.mu.RUnlock()
	all := slices.Clone(t.orders[allOwners])
	slices.Reverse(all)
	return all
}

// list returns a page of the sandboxes that a filter accepts, newest first, ties by id, and how
// many it accepts. Without conditions on metadata it looks at no more sandboxes than it takes to
// fill the page.
func (t *table) list(filter *lifecycle.Filter, page lifecycle.Page) (items []*Entry, total int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	owner := allOwners
	if filter.Owner != nil {
		owner = *filter.Owner
	}
	order := t.orders[owner]
	skip := len(order) // more than there are; the product may be more than an int
	if page.Number-1 <= skip/page.Size {
		skip = (page.Number - 1) * page.Size
	}
	if len(filter.Metadata) == 0 && len(filter.States) == 0 {
		for i := len(order) - 1 - skip; i >= 0 && len(items) < page.Size; i-- {
			items = append(items, order[i])
		}
		return items, len(order)
	}
	known := -1 // how many there are, where that is counted
	if len(filter.Metadata) == 0 {
		known = 0
		for state, n := range t.counts[owner] {
			if slices.Contains(filter.States, state) {
				known += n
			}
		}
	}
	for _, e := range slices.Backward(order) {
		if known >= 0 && (total == known || len(items) == page.Size) {
			break
		}
		if !filter.Match(&e.Sandbox) {
			continue
		}
		if total >= skip && len(items) < page.Size {
			items = append(items, e)
		}
		total++
	}
	return items, max(total, known)
}

// count returns how many sandboxes of an owner, or of allOwners, are in each state that any is in.
func (t *table) count(owner string) map[lifecycle.State]int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	count := make(map[lifecycle.State]int)
	for state, n := range t.counts[owner] {
		if n > 0 {
			count[state] = n
		}
	}
	return count
}

// await returns when done accepts the sandbox, it is removed, the time is up or ctx ends: the
// version that was seen last.
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
