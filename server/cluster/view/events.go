package view

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// An event's sequence is the version of the resource that shows it, and the event's place among
// those that the version shows. So it is the same at every replica, as the versions are the
// cluster's one sequence; and sequences have gaps.
const placeBits = 6

// maxEvents and maxEventBytes bound the events that a replica keeps: how many, and how many bytes
// ([sizeOf]). When there are more, the oldest tenth goes. A sandbox has seven in its life, so that
// what is left is more than a minute of 300 whole lives a second.
const maxEvents, maxEventBytes = 150_000, 48 << 20

// feedPage and feedBytes bound what a feed hands out at once: so many events, and none once they
// have so many bytes.
const feedPage, feedBytes = 256, 256 << 10

// sequenceAfter is greater than the sequence of every event that versions up to this one show.
func sequenceAfter(version uint64) int64 { return int64(version)<<placeBits | (1<<placeBits - 1) }

// journal has the events that this replica has seen happen. They come from comparing each version
// of a resource with the one before.
type journal struct {
	mu      sync.Mutex
	last    map[string]*Entry // the newest version of each sandbox that was compared
	events  []lifecycle.Event // by sequence
	bytes   int               // of events
	floor   int64             // events up to this sequence are unknown here
	newest  int64             // every event up to this sequence is here, or was
	changed chan struct{}     // closed, and replaced, when there are new events
	newer   chan struct{}     // closed, and removed, when newest grows; nil while nothing waits for that
}

func newJournal() *journal {
	return &journal{last: make(map[string]*Entry), changed: make(chan struct{})}
}

// begin forgets everything and goes on from a list of what there is. What happened between the last
// version and the list is unknown.
func (j *journal) begin(version uint64, listed map[string]*Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last, j.events, j.bytes = listed, nil, 0
	j.floor = sequenceAfter(version)
	j.newest = j.floor
	j.notify()
	j.grown()
}

// advance records that there are no more events up to a version.
func (j *journal) advance(version uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.newest = max(j.newest, sequenceAfter(version))
	j.grown()
}

// grown wakes what waits for a version. The caller holds mu.
func (j *journal) grown() {
	if j.newer != nil {
		close(j.newer)
		j.newer = nil
	}
}

// reached reports whether the watch has brought all versions up to this one; if not, more is closed
// when it has brought another.
func (j *journal) reached(version uint64) (there bool, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.newest >= sequenceAfter(version) {
		return true, nil
	}
	if j.newer == nil {
		j.newer = make(chan struct{})
	}
	return false, j.newer
}

// take adds the events that a version of a sandbox shows, and returns them.
func (j *journal) take(e *Entry, deleted bool, now time.Time) []lifecycle.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := e.Sandbox.ID
	events := difference(j.last[id], e, deleted, now)
	for i := range events {
		events[i].Sequence = int64(e.Version)<<placeBits | int64(i)
		events[i].SandboxID, events[i].Owner = id, e.Sandbox.Owner
		events[i].Time = events[i].Time.UTC()
	}
	if j.last[id] = e; deleted {
		delete(j.last, id)
	}
	j.events = append(j.events, events...)
	for i := range events {
		j.bytes += sizeOf(&events[i])
	}
	if len(j.events) > maxEvents || j.bytes > maxEventBytes {
		j.drop()
	}
	j.newest = max(j.newest, sequenceAfter(e.Version))
	j.grown()
	if len(events) > 0 {
		j.notify()
	}
	return events
}

// drop forgets the oldest events until there is room for a tenth of what is remembered at most.
func (j *journal) drop() {
	n := 0
	for ; n < len(j.events) && (len(j.events)-n > maxEvents/10*9 || j.bytes > maxEventBytes/10*9); n++ {
		j.floor = j.events[n].Sequence
		j.bytes -= sizeOf(&j.events[n])
	}
	j.events = append([]lifecycle.Event(nil), j.events[n:]...) // a new array: the old one holds what is forgotten
}

// sizeOf is about how many bytes of memory an event takes.
func sizeOf(event *lifecycle.Event) int {
	// Of each entry of its lists, and of a message that is not counted: most are constants.
	const entry, usual = 64, 64
	size := int(unsafe.Sizeof(*event)) + max(len(event.Message)-usual, 0) // ids and names are the sandbox's
	for key, value := range event.Metadata {
		size += entry + len(key) + len(value)
	}
	for _, key := range event.Removed {
		size += entry + len(key)
	}
	if event.NetworkPolicy != nil {
		for _, rule := range event.NetworkPolicy.Egress {
			size += entry + len(rule.Target)
		}
	}
	return size
}

func (j *journal) notify() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// difference is what happened between two versions of a sandbox; before is nil for a new one.
func difference(before, after *Entry, deleted bool, now time.Time) (events []lifecycle.Event) {
	add := func(event lifecycle.Event) { events = append(events, event) }
	touched := now
	if at, err := time.Parse(time.RFC3339Nano, after.Batch.Annotations[AnnotationTouched]); err == nil {
		touched = at
	}
	state := func(from lifecycle.State, to lifecycle.Status) {
		add(lifecycle.Event{Type: lifecycle.EventState, Time: to.LastTransitionAt, From: from, To: to.State, Reason: to.Reason, Message: to.Message})
	}
	is := after.Sandbox
	if before == nil {
		state("", is.Status)
		events = append(events, stages(before, after)...)
	} else {
		was := before.Sandbox
		if set, removed := lifecycle.DiffMetadata(was.Metadata, is.Metadata); len(set)+len(removed) > 0 {
			add(lifecycle.Event{Type: lifecycle.EventMetadata, Time: touched, Metadata: set, Removed: removed})
		}
		if !was.ExpiresAt.Equal(is.ExpiresAt) {
			add(lifecycle.Event{Type: lifecycle.EventRenewed, Time: touched, ExpiresAt: is.ExpiresAt})
		}
		if settings := is.Settings(); settings != was.Settings() {
			add(lifecycle.Event{Type: lifecycle.EventLifecycle, Time: touched, Lifecycle: &settings})
		}
		if policy := policyOf(after.Batch); !reflect.DeepEqual(policyOf(before.Batch), policy) {
			add(lifecycle.Event{Type: lifecycle.EventPolicy, Time: touched, NetworkPolicy: policy})
		}
		events = append(events, stages(before, after)...) // the last of them is what makes the sandbox Running
		switch {
		case was.Status.State != is.Status.State:
			state(was.Status.State, is.Status)
		case is.Status.State == lifecycle.StatePending && was.Status.Reason != is.Status.Reason && !usual(is.Status.Reason):
			add(lifecycle.Event{Type: lifecycle.EventProgress, Time: now, Reason: is.Status.Reason, Message: is.Status.Message})
		}
	}
	if deleted {
		if !is.Status.State.Final() { // the resource was deleted by another client of the API server
			state(is.Status.State, lifecycle.Status{State: lifecycle.StateTerminated, Reason: lifecycle.ReasonUserDelete,
				Message: "the BatchSandbox was deleted", LastTransitionAt: now})
		}
		add(lifecycle.Event{Type: lifecycle.EventForgotten, Time: now})
	}
	return events
}

// usual reports whether every sandbox has the reason on its way to Running; others keep it from
// there.
func usual(reason lifecycle.Reason) bool {
	return reason == lifecycle.ReasonProvisioning || reason == lifecycle.ReasonImagePulling || reason == lifecycle.ReasonContainerStarting
}

// stages are those that a sandbox has reached since.
func stages(before, after *Entry) (events []lifecycle.Event) {
	var past lifecycle.Sandbox
	if before != nil {
		past.Stages = before.Sandbox.Stages
	}
	for _, reached := range after.Sandbox.Stages {
		if event, fresh := past.Reach(reached.Stage, reached.At); fresh {
			events = append(events, event)
		}
	}
	return events
}

// policyOf is the network policy that was set last, nil when none was.
func policyOf(b *v1alpha1.BatchSandbox) *lifecycle.NetworkPolicy {
	text, ok := b.Annotations[AnnotationPolicy]
	if !ok {
		return nil
	}
	var policy lifecycle.NetworkPolicy
	if json.Unmarshal([]byte(text), &policy) != nil {
		return nil // written by another program
	}
	return &policy
}

// feed implements lifecycle.EventFeed.
type feed struct {
	view   *View
	id     string  // empty means every sandbox
	owner  *string // nil means every owner
	cursor int64
	begun  bool
	ended  bool // the sandbox's last event was handed out
}

// Events implements lifecycle.Backend.
func (v *View) Events(ctx context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	if selection.SandboxID != "" {
		if _, err := v.Find(ctx, selection.SandboxID); err != nil {
			return nil, err
		}
	}
	v.feeds.mu.Lock()
	floor, newest := v.feeds.floor, v.feeds.newest
	v.feeds.mu.Unlock()
	f := &feed{view: v, id: selection.SandboxID, owner: selection.Owner}
	switch after := selection.After; {
	case after == nil && selection.SandboxID == "":
		f.cursor = newest
	case after == nil, *after <= 0:
		f.cursor = floor
	default:
		f.cursor = *after
		if *after > newest { // another replica may have been ahead of this one; none is ahead of the API server
			latest, err := v.latest(ctx)
			if err != nil {
				return nil, err
			}
			if *after > sequenceAfter(latest) {
				f.cursor = -1 // no replica has handed it out
			}
		}
	}
	return f, nil
}

// Close implements lifecycle.EventFeed.
func (f *feed) Close() {}

// Next implements lifecycle.EventFeed.
func (f *feed) Next(ctx context.Context) (lifecycle.EventBatch, error) {
	for {
		if f.ended {
			return lifecycle.EventBatch{}, io.EOF
		}
		batch, more := f.read()
		if !f.begun || batch.Reset || len(batch.Events) > 0 {
			f.begun = true
			return batch, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return lifecycle.EventBatch{}, ctx.Err()
		case <-f.view.ctx.Done():
			return lifecycle.EventBatch{}, lifecycle.Stopping()
		}
	}
}

// read returns what there is behind the cursor, and moves the cursor.
func (f *feed) read() (batch lifecycle.EventBatch, more <-chan struct{}) {
	j := f.view.feeds
	j.mu.Lock()
	defer j.mu.Unlock()
	if f.cursor < j.floor {
		f.cursor = j.newest
		if f.id != "" {
			f.ended = f.view.table.get(f.id) == nil // its last event may be among the unknown ones
		}
		return lifecycle.EventBatch{Cursor: f.cursor, Reset: true}, j.changed
	}
	// The events are in the order of their sequence.
	low, high := 0, len(j.events)
	for low < high {
		if middle := (low + high) / 2; j.events[middle].Sequence > f.cursor {
			high = middle
		} else {
			low = middle + 1
		}
	}
	bytes := 0
	for _, event := range j.events[low:] {
		if len(batch.Events) == feedPage || bytes >= feedBytes {
			batch.Cursor = f.cursor
			return batch, j.changed
		}
		f.cursor = event.Sequence
		if (f.id == "" || f.id == event.SandboxID) && (f.owner == nil || *f.owner == event.Owner) {
			batch.Events, bytes = append(batch.Events, event), bytes+sizeOf(&event)
			f.ended = f.id != "" && event.Type == lifecycle.EventForgotten
		}
	}
	f.cursor = max(f.cursor, j.newest)
	batch.Cursor = f.cursor
	return batch, j.changed
}
