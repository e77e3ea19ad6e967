package host

import (
	"context"
	"io"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Boxes creates and controls what sandboxes consist of. The host decides when; it has no notion of
// states and expiry.
//
// Every method may be called from several goroutines at once, and every one but Assign again with
// the same record after a call that a crash interrupted. Errors are wrapped
// [lifecycle.ErrBoxUnavailable], [lifecycle.ErrNoBox], [lifecycle.ErrBoxNotAlive], or a
// *[lifecycle.BoxFailure].
type Boxes interface {
	// Close cancels the calls in progress, and changes no box of a sandbox.
	Close()
	// Ready returns an error when the engine does not answer.
	Ready(ctx context.Context) error
	// Admit refuses a spec that cannot be launched here, or not for the caller, with an error of
	// type *lifecycle.Error.
	Admit(ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions) error
	// Assign gives a new record the identity of its box ([lifecycle.Record.Box]), and what the box
	// is made with. It may choose another id for the sandbox: one that a part of the box was made
	// with already.
	Assign(record *lifecycle.Record)
	// Launch makes the box, or continues an interrupted launch, and returns where the box is
	// reached once execd has proved there that it has the record's token.
	Launch(ctx context.Context, record lifecycle.Record,
		launch lifecycle.Launch) (lifecycle.Place, error)
	// Restart starts a box again whose processes are gone and whose files are kept
	// ([lifecycle.Record.Stopped]), and returns as Launch does. With an error of its own, a
	// *[lifecycle.BoxFailure], the files are as they were, and it can be called again.
	Restart(ctx context.Context, record lifecycle.Record,
		launch lifecycle.Launch) (lifecycle.Place, error)
	// Host returns the name or address at which the service reaches the ports of the record's
	// place.
	Host(record *lifecycle.Record) string
	// Inspect returns the condition of the box.
	Inspect(ctx context.Context, record lifecycle.Record) (lifecycle.BoxCondition, error)
	// Freeze stops the processes in the box from running, memory retained; Thaw lets them run
	// again. Both are idempotent.
	Freeze(ctx context.Context, record lifecycle.Record) error
	Thaw(ctx context.Context, record lifecycle.Record) error
	// Stop sends the entrypoint a SIGTERM, and a SIGKILL after a grace. Remove removes everything
	// of the box. Both succeed for a missing box.
	Stop(ctx context.Context, record lifecycle.Record) error
	Remove(ctx context.Context, record lifecycle.Record) error
	// SnapshotsUnsupported returns why no snapshots can be taken here, an error of type
	// *lifecycle.Error of KindUnsupported; nil where they can.
	SnapshotsUnsupported() error
	// ComparisonUnsupported is the same for CompareSnapshots and ArchiveSnapshot, and
	// SuspensionUnsupported for Suspend.
	ComparisonUnsupported() error
	SuspensionUnsupported() error
	// MemoryUnsupported returns why no snapshots of memory can be taken of a box, an error of type
	// *lifecycle.Error of KindUnsupported; nil where they can.
	MemoryUnsupported(record lifecycle.Record) error
	// TakeSnapshot keeps the files of the box as those of the snapshot, and its processes too where
	// that is of memory, which may add at most
	// maxBytes to the disk (0: however many), and returns what is known of it then. A snapshot that
	// was made already is returned as it is. The box is frozen meanwhile.
	TakeSnapshot(ctx context.Context, record lifecycle.Record, snapshot lifecycle.Snapshot,
		maxBytes int64) (lifecycle.SnapshotFiles, error)
	// Snapshots returns what this service's snapshots have at the engine, by id. RemoveSnapshot
	// removes one; it succeeds for a missing one.
	Snapshots(ctx context.Context) (map[string]lifecycle.FoundSnapshot, error)
	RemoveSnapshot(ctx context.Context, id string) error
	// Rollback ends the processes of the box and gives it the files of the snapshot with the id. It
	// can be started again then, as it can after an error: with its own files or the snapshot's.
	Rollback(ctx context.Context, record lifecycle.Record, id string) error
	// Suspend ends the processes of the box and keeps its files, on which Restart starts it. It can
	// be repeated, and succeeds for a box whose processes are gone and whose files are kept.
	Suspend(ctx context.Context, record lifecycle.Record) error
	// HibernationUnsupported returns why Hibernate cannot be had here, an error of type
	// *lifecycle.Error of KindUnsupported; nil where it can.
	HibernationUnsupported() error
	// Hibernate brings a frozen box to the disk, and returns whether its processes are there too;
	// else they have ended, and the files are kept. Restart has it run again. When ctx ends before
	// the processes are on the disk, the box stays as it was. It can be repeated, also for a box
	// that is on the disk.
	Hibernate(ctx context.Context, record lifecycle.Record) (processes bool, err error)
	// SleepUnsupported returns why packets to a frozen box cannot be reported here, an error of
	// type *lifecycle.Error of KindUnsupported; nil where they can.
	SleepUnsupported() error
	// WatchTraffic calls notify, which must be quick, for packets to the box that open a connection
	// or carry data, until stop is called; also while the box is frozen.
	WatchTraffic(ctx context.Context, record lifecycle.Record, notify func()) (stop func(), err error)
	// HoldConnections has new connections to published ports of the box wait that is about to be
	// brought to the disk, or is there, and calls notify, which must be quick, for each. They are
	// connected to it once it runs again, or is thawed. Release lets later ones wait no more. It
	// returns an error of type *lifecycle.Error of KindUnsupported for a box without such ports.
	HoldConnections(ctx context.Context, record lifecycle.Record, notify func()) (release func(), err error)
	// WatchIdle calls handle for what execd in the box reports of its idleness, one call at a time,
	// until handle returns an error, ctx ends or the report does, and returns why; never nil. It
	// calls began before, once execd has begun to count. Idle is for how long nothing must have
	// kept the sandbox awake.
	WatchIdle(ctx context.Context, record lifecycle.Record, idle time.Duration, began func() error,
		handle func(lifecycle.IdleEvent) error) error
	// Holds returns what keeps the sandbox of the box awake.
	Holds(ctx context.Context, record lifecycle.Record) (lifecycle.Holds, error)
	// CompareSnapshots calls visit for each file in which the snapshot to differs from the snapshot
	// from, or from its image where from is empty; an error of visit ends it, and is returned.
	// ArchiveSnapshot writes the same difference as a layer of an image. Both also return an error
	// of type *lifecycle.Error.
	CompareSnapshots(ctx context.Context, from, to string, visit func(lifecycle.FileChange) error) error
	ArchiveSnapshot(ctx context.Context, from, to string, w io.Writer) error
	// DigestSnapshot returns the digest of the files of the snapshot with the id, once it is made.
	DigestSnapshot(ctx context.Context, id string) (string, error)
	// ExportSnapshot makes an image of the snapshot with the id, under a name. It also returns an
	// error of type *lifecycle.Error.
	ExportSnapshot(ctx context.Context, id, name string) (lifecycle.Image, error)
	// OpenLog returns the output of the entrypoint. Reading it ends with ctx; the caller closes it.
	OpenLog(ctx context.Context, record lifecycle.Record,
		options lifecycle.LogOptions) (io.ReadCloser, error)
	// List returns every box of this service that the engine has; Discard removes one of them.
	List(ctx context.Context) ([]lifecycle.BoxListing, error)
	Discard(ctx context.Context, box lifecycle.BoxListing) error
	// Watch calls handle, one call at a time, for events of boxes, by their identity, until ctx
	// ends or the engine closes the connection. It calls ready once no event will be missed. handle
	// must be quick.
	Watch(ctx context.Context, ready func(), handle func(id string, event lifecycle.BoxEvent)) error
}
