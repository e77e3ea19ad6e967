package host

import (
	"context"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Store keeps records, and the events of their changes. Insert, Save and Forget return once the
// record and its events are on disk, and write either both or neither.
//
// SaveUnsynced is Save for a change that a loss of power may undo; it outlives this process however
// that ends.
type Store interface {
	Load(ctx context.Context) ([]lifecycle.Record, error)
	Insert(ctx context.Context, record lifecycle.Record, key *lifecycle.IdempotencyKey,
		events ...lifecycle.Event) error
	Save(ctx context.Context, record lifecycle.Record, events ...lifecycle.Event) error
	SaveUnsynced(ctx context.Context, record lifecycle.Record, events ...lifecycle.Event) error
	Forget(ctx context.Context, id string, events ...lifecycle.Event) error

	// LoadSnapshots returns the snapshots, oldest first. InsertSnapshot and SaveSnapshot return
	// once the snapshot, the sandbox's record unless it is nil, and the events are on disk, and
	// write all or nothing. SaveSnapshotUnsynced saves a snapshot as SaveUnsynced does a sandbox.
	LoadSnapshots(ctx context.Context) ([]lifecycle.Snapshot, error)
	InsertSnapshot(ctx context.Context, snapshot lifecycle.Snapshot, key *lifecycle.IdempotencyKey, events ...lifecycle.Event) error
	SaveSnapshot(ctx context.Context, snapshot lifecycle.Snapshot, record *lifecycle.Record,
		events ...lifecycle.Event) error
	SaveSnapshotUnsynced(ctx context.Context, snapshot lifecycle.Snapshot) error
	ForgetSnapshot(ctx context.Context, id string) error

	// Events returns the matching events, and the bounds of those that are kept, once they are on
	// disk. TrimEvents forgets events older than notBefore, and the oldest ones in excess of keep.
	// The store may forget the oldest ones at any time.
	Events(ctx context.Context, query lifecycle.EventQuery) (lifecycle.EventPage, error)
	TrimEvents(ctx context.Context, keep int, notBefore time.Time) error

	// SaveLog keeps the end of an ended sandbox's log until its record is forgotten.
	SaveLog(ctx context.Context, id string, log []byte) error
	Log(ctx context.Context, id string) (log []byte, kept bool, err error)

	FindKey(ctx context.Context, owner, key string,
		notBefore time.Time) (lifecycle.IdempotencyKey, bool, error)
	PurgeKeys(ctx context.Context, notBefore time.Time) error

	// CheckWritable returns an error when a change cannot be made durable, as on a full disk.
	CheckWritable(ctx context.Context) error
}
