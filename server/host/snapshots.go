package host

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"sandbox.internal/server/lifecycle"
)

var _ lifecycle.SnapshotStore = (*Host)(nil)

// concurrentSnapshots bounds how many snapshots are taken at once: what they copy competes for one
// disk, and sandboxes stand still meanwhile.
const concurrentSnapshots = 2

// snapshots are those that there are. A snapshot outlives its sandbox, so it belongs to no actor;
// its changes pass through the actor of its sandbox while there is one, so that their events come
// before that sandbox's last.
type snapshots struct {
	slots slots
	diffs slots         // of comparisons
	due   chan struct{} // holds one: an expiry may be earlier than those before
	ready chan struct{} // holds one: a digest may be missing
	// measuring serialises what is read of the sizes of all, so that no older size is noted last.
	measuring sync.Mutex

	mu       sync.Mutex
	kept     map[string]*kept
	reserved map[string]int     // by owner: how many are being recorded
	taking   map[string][]*kept // by sandbox: those that are not taken yet, in the order of the requests
	// needs counts, by snapshot, the sandboxes that cannot do without it: those that are about to
	// be made of it, and those that are being rolled back to it.
	needs    map[string]int
	archives map[string]int // by owner: how many differences are being sent
}

// kept is one snapshot. Its fields but the constant ones are guarded by snapshots.mu.
type kept struct {
	id     string
	change chan struct{} // holds one while the record is being changed
	// ctx ends when the snapshot is not wanted any more, or the service ends; cancel says why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	before <-chan struct{} // closed when those of the sandbox that were asked for before are taken
	done   chan struct{}   // closed when it is not being taken any more
	// recovered says that an earlier service had begun to take it; found is what the engine had of
	// it then, nil for nothing.
	recovered bool
	found     *lifecycle.SnapshotFiles

	record lifecycle.Snapshot
	gone   bool // it is forgotten
	// unwanted says that it could not be deleted, and is to be. That is not in the record, which
	// another change may be about to replace, and the next service finds out by itself.
	unwanted bool
	// undigestible says that the digest of its files cannot be made.
	undigestible bool
	changed      chan struct{} // closed by the next change
}

func newSnapshots() snapshots {
	return snapshots{
		slots: slots{free: concurrentSnapshots, held: map[string]int{}},
		diffs: slots{free: concurrentDiffs, held: map[string]int{}}, due: make(chan struct{}, 1), ready: make(chan struct{}, 1), archives: map[string]int{},
		kept: map[string]*kept{}, reserved: map[string]int{}, taking: map[string][]*kept{}, needs: map[string]int{},
	}
}

// add makes a snapshot visible, which counts as reserved no more. One that is to be taken comes
// behind those of its sandbox that are not taken yet.
func (s *snapshots) add(ctx context.Context, record lifecycle.Snapshot, take bool) *kept {
	k := &kept{
		id: record.ID, record: record, change: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{}),
	}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[k.id] = k
	s.unreserveLocked(record.Owner)
	if !take {
		close(k.done)
		s.noteDue()
		return k
	}
	line := s.taking[record.SandboxID]
	if n := len(line); n > 0 {
		k.before = line[n-1].done
	} else {
		first := make(chan struct{})
		close(first)
		k.before = first
	}
	s.taking[record.SandboxID] = append(line, k)
	s.noteDue()
	return k
}

// taken takes a snapshot out of the line of its sandbox.
func (s *snapshots) taken(k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := k.record.SandboxID
	// A new slice: another goroutine may read the old one.
	left := slices.DeleteFunc(slices.Clone(s.taking[id]), func(other *kept) bool { return other == k })
	if s.taking[id] = left; len(left) == 0 {
		delete(s.taking, id)
	}
	close(k.done)
}

// line returns the snapshots of a sandbox that are not taken yet.
func (s *snapshots) line(sandboxID string) []*kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taking[sandboxID]
}

// unwant has a snapshot deleted by the next look at the expiries, which goes on until it succeeds.
func (s *snapshots) unwant(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.kept[id]; ok {
		k.unwanted = true
		s.noteDue()
	}
}

// unwanted returns the ids of the snapshots that unwant was called for, and that are not Deleting.
func (s *snapshots) unwanted() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.kept {
		if k.unwanted && k.record.Status.State != lifecycle.SnapshotDeleting {
			ids = append(ids, id)
		}
	}
	return ids
}

// noteDue has the expiries and the digests looked at. The caller holds mu, or nothing.
func (s *snapshots) noteDue() {
	for _, noted := range []chan struct{}{s.due, s.ready} {
		select {
		case noted <- struct{}{}:
		default:
		}
	}
}

// get returns a snapshot, or an error of KindNoSnapshot.
func (s *snapshots) get(id string) (*kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.kept[id]; ok {
		return k, nil
	}
	return nil, lifecycle.NoSnapshot(id)
}

// read returns the record as it is now, whether it is forgotten, and what its next change closes.
func (s *snapshots) read(k *kept) (record lifecycle.Snapshot, gone bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.record, k.gone, k.changed
}

// all returns the records, in no order.
func (s *snapshots) all() []lifecycle.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]lifecycle.Snapshot, 0, len(s.kept))
	for _, k := range s.kept {
		list = append(list, k.record)
	}
	return list
}

// set makes a record visible that is durable.
func (s *snapshots) set(k *kept, record lifecycle.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.record = record
	k.wake()
	s.noteDue()
}

// wake ends the waiting for the next change. The caller holds the lock of all.
func (k *kept) wake() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// remove takes out a snapshot that is forgotten.
func (s *snapshots) remove(k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, k.id)
	k.gone = true
	k.wake()
	k.cancel(nil)
}

// lock waits until no other change of the snapshot is being made. It returns ctx's error when ctx
// ends first.
func (k *kept) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case k.change <- struct{}{}:
		return func() { <-k.change }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reserve counts a snapshot that is about to be recorded, among those that the owner may have,
// until it is added or unreserve is called.
func (s *snapshots) reserve(r lifecycle.SnapshotRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	count, bytes := s.reserved[r.Owner], int64(0)
	for _, k := range s.kept {
		if k.record.Owner == r.Owner && k.record.Status.State != lifecycle.SnapshotFailed {
			count++
			bytes += k.record.ExclusiveSize
		}
	}
	if r.MaxSnapshots > 0 && count >= r.MaxSnapshots {
		return lifecycle.Conflictf(
			"snapshots of API key %q: %d, and server.max_snapshots is %d; delete one, or wait until one expires",
			r.Owner, count, r.MaxSnapshots)
	}
	if r.MaxBytes > 0 && bytes >= r.MaxBytes {
		return lifecycle.Conflictf(
			"snapshots of API key %q have %d MiB of disk, and server.max_snapshots_mib is %d; delete one, or wait until one expires",
			r.Owner, bytes>>20, r.MaxBytes>>20)
	}
	s.reserved[r.Owner]++
	return nil
}

func (s *snapshots) unreserve(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreserveLocked(owner)
}

func (s *snapshots) unreserveLocked(owner string) {
	if s.reserved[owner]--; s.reserved[owner] <= 0 {
		delete(s.reserved, owner)
	}
}

// left returns how many bytes of its bound the owner of a snapshot has left; 0 where there is no
// bound, and at least 1 where there is one.
func (s *snapshots) left(of lifecycle.Snapshot) int64 {
	if of.MaxBytes == 0 {
		return 0
	}
	left := of.MaxBytes
	for _, other := range s.all() {
		if other.Owner == of.Owner && other.Status.State != lifecycle.SnapshotFailed {
			left -= other.ExclusiveSize
		}
	}
	return max(1, left)
}

// use returns a snapshot that is Ready, and stays at the engine until done is called.
func (s *snapshots) use(id string, allowed func(*lifecycle.Snapshot) bool) (snapshot lifecycle.Snapshot, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[id]
	if !ok || k.record.Status.State == lifecycle.SnapshotDeleting || !allowed(&k.record) {
		return lifecycle.Snapshot{}, nil, lifecycle.NoSnapshot(id)
	}
	if state := k.record.Status.State; state != lifecycle.SnapshotReady {
		conflict := lifecycle.Conflictf("snapshot %s is %s; it must be %s", id, state, lifecycle.SnapshotReady)
		if state == lifecycle.SnapshotCreating {
			conflict.RetryAfter = 1
		}
		return lifecycle.Snapshot{}, nil, conflict
	}
	s.needs[id]++
	return k.record.Clone(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.release(id)
	}, nil
}

// release counts a need less. The caller holds mu.
func (s *snapshots) release(id string) {
	if s.needs[id]--; s.needs[id] > 0 {
		return
	}
	delete(s.needs, id)
	if k := s.kept[id]; k != nil {
		k.wake()
	}
}

// need keeps count of which snapshots sandboxes need, where a sandbox's record changes. before is
// nil for a new one.
func (s *snapshots) need(before, after *lifecycle.Record) {
	was, is := neededBy(before), neededBy(after)
	if was == is {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if is != "" {
		s.needs[is]++
	}
	if was != "" {
		s.release(was)
	}
}

// neededBy returns the snapshot that the engine is about to be asked for; empty for none.
func neededBy(record *lifecycle.Record) string {
	switch {
	case record == nil:
		return ""
	case record.Sandbox.Status.State == lifecycle.StatePending:
		return record.Spec.SnapshotID
	case record.Sandbox.Status.State == lifecycle.StateResuming:
		return record.Rollback
	}
	return ""
}

// needed reports whether a sandbox needs the snapshot.
func (s *snapshots) needed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.needs[id] > 0
}

// Snapshot implements lifecycle.SnapshotStore.
func (h *Host) Snapshot(_ context.Context, id string) (lifecycle.Snapshot, error) {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return lifecycle.Snapshot{}, err
	}
	k, err := h.snapshots.get(id)
	if err != nil {
		return lifecycle.Snapshot{}, err
	}
	record, _, _ := h.snapshots.read(k)
	return record.Clone(), nil
}

// Snapshots implements lifecycle.SnapshotStore.
func (h *Host) Snapshots(
	_ context.Context, filter lifecycle.SnapshotFilter, page lifecycle.Page,
) (lifecycle.SnapshotListing, error) {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return lifecycle.SnapshotListing{}, err
	}
	if err := page.Validate(); err != nil {
		return lifecycle.SnapshotListing{}, err
	}
	list := slices.DeleteFunc(h.snapshots.all(), func(s lifecycle.Snapshot) bool { return !filter.Match(&s) })
	slices.SortFunc(list, func(a, b lifecycle.Snapshot) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	listing := lifecycle.SnapshotListing{Items: []lifecycle.Snapshot{}, Total: len(list)}
	// Divided, not multiplied: a page number may be as large as an integer gets.
	if page.Number-1 <= len(list)/page.Size {
		first := (page.Number - 1) * page.Size
		for _, s := range list[min(first, len(list)):min(first+page.Size, len(list))] {
			listing.Items = append(listing.Items, s.Clone())
		}
	}
	return listing, nil
}

// AwaitSnapshot implements lifecycle.SnapshotStore.
func (h *Host) AwaitSnapshot(ctx context.Context, id string, atMost time.Duration) (lifecycle.Snapshot, error) {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return lifecycle.Snapshot{}, err
	}
	k, err := h.snapshots.get(id)
	if err != nil {
		return lifecycle.Snapshot{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		record, gone, changed := h.snapshots.read(k)
		if gone || record.Status.State != lifecycle.SnapshotCreating {
			return record.Clone(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return record.Clone(), nil
		case <-h.ctx.Done():
			return record.Clone(), nil
		}
	}
}

// CountSnapshots returns the number of snapshots by state, without states that have none.
func (h *Host) CountSnapshots() map[lifecycle.SnapshotState]int {
	count := make(map[lifecycle.SnapshotState]int)
	for _, s := range h.snapshots.all() {
		count[s.Status.State]++
	}
	return count
}

// enter keeps the service from ending until leave is called: nothing may begin work after the
// actors have ended. It returns an error when the service is ending.
func (h *Host) enter() (leave func(), err error) {
	h.creating.RLock()
	if h.ctx.Err() != nil {
		h.creating.RUnlock()
		return nil, lifecycle.Stopping()
	}
	return h.creating.RUnlock, nil
}

// saveSnapshot makes a changed snapshot durable and then visible, with its event while there is its
// sandbox.
func (h *Host) saveSnapshot(ctx context.Context, k *kept, record lifecycle.Snapshot) error {
	a, err := h.registry.get(record.SandboxID)
	if err == nil {
		err = a.do(ctx, func() error { return a.saveSnapshot(record) })
	}
	if isKind(err, lifecycle.KindNotFound) {
		err = h.options.Store.SaveSnapshot(ctx, record, nil)
	}
	if err != nil {
		return err
	}
	h.snapshots.set(k, record)
	h.options.Logger.Info().
		Str("snapshot_id", record.ID).
		Str("sandbox_id", record.SandboxID).
		Str("to", string(record.Status.State)).
		Str("reason", string(record.Status.Reason)).
		Str("detail", record.Status.Message).
		Msg("snapshot changed state")
	return nil
}

// saveSnapshot saves a snapshot of the actor's sandbox; one that is Ready becomes its last.
func (a *actor) saveSnapshot(snapshot lifecycle.Snapshot) error {
	events := []lifecycle.Event{a.snapshotEvent(snapshot)}
	store := a.host.options.Store
	if snapshot.Status.State != lifecycle.SnapshotReady || snapshot.Temporary || a.state().Final() {
		if err := store.SaveSnapshot(a.host.ctx, snapshot, nil, events...); err != nil {
			return err
		}
		a.host.notifier.notify(events)
		return nil
	}
	record := a.record
	record.LastSnapshot, record.EngineImage = snapshot.ID, snapshot.EngineImage
	events = slices.Concat(a.unsaved, events)
	if err := store.SaveSnapshot(a.host.ctx, snapshot, &record, events...); err != nil {
		return err
	}
	a.unsaved, a.saveAgainAt = nil, time.Time{}
	a.host.notifier.notify(events)
	a.setRecord(record)
	return nil
}

func (a *actor) snapshotEvent(snapshot lifecycle.Snapshot) lifecycle.Event {
	event := a.event(lifecycle.EventSnapshot)
	event.Time = snapshot.Status.LastTransitionAt
	event.SnapshotID, event.SnapshotState = snapshot.ID, snapshot.Status.State
	event.Reason, event.Message = snapshot.Status.Reason, snapshot.Status.Message
	return event
}
