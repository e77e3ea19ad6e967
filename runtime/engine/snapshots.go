package engine

import (
	"context"
	"errors"
	"io"
	"time"
)

var (
	// ErrNoSnapshot: there is no such snapshot.
	ErrNoSnapshot = errors.New("no such snapshot")
	// ErrSnapshotTooLarge: a snapshot would take more than the caller allows.
	ErrSnapshotTooLarge = errors.New("snapshot too large")
	// ErrBusy: the container's processes could not be stopped from running in time; they run on.
	ErrBusy = errors.New("container busy")
	// ErrNoMemory: the engine cannot keep or restore the processes of the container.
	ErrNoMemory = errors.New("processes cannot be kept")
	// ErrNoRoom: the disk of the engine's host is full.
	ErrNoRoom = errors.New("no room on the disk")
)

// Snapshots is what an [Engine] implements that can keep what containers have written to their root
// file systems, and give it to others. Errors are as of an Engine.
//
// A snapshot holds what differs from the container's image: contents, owners, modes, times,
// extended attributes, hard links, holes, and what was removed. Mounts, /dev, /proc, /sys and the
// files below /etc that the engine provides are not part of it, nor is the container's environment.
// It never changes.
//
// A snapshot of memory ([Snapshot].Memory) also holds the container's processes as they were at
// that moment, with all that is in their memory, tokens and environment too. Only the container
// that it was taken of can be given these back.
type Snapshots interface {
	// CheckAbility returns nil where the engine can do what the ability stands for, and else an
	// error that wraps [errors.ErrUnsupported] and says why not, as the methods then do.
	CheckAbility(ability Ability) error

	// TakeSnapshot makes the snapshot from a container that runs, is frozen, or is [StatusStopped].
	// The processes of one that runs do not run while their files are compared and copied, and run
	// again when it returns, whatever it returns, also when the service is killed meanwhile and
	// another Engine opens; watchers see neither a freeze nor a thaw. A snapshot of that name is
	// returned as it is. Calls that start, freeze, stop or remove the container wait.
	//
	// TakeSnapshot returns [ErrNotFound], [ErrNotRunning], [ErrSnapshotTooLarge], [ErrBusy],
	// [ErrNoRoom], [ErrInvalid] for files that cannot be kept and for containers with a kernel of
	// their own, and [ErrExists] while a snapshot of that name is made of another container; then
	// nothing of the snapshot is left. With Memory, containers with a kernel of their own are those
	// that it is for: it returns [ErrNoMemory] for others, and [ErrNotRunning] for one that is
	// stopped.
	TakeSnapshot(ctx context.Context, id string, options SnapshotOptions) (Snapshot, error)

	// KeepsMemory returns an error that wraps [ErrNoMemory], with the reason, when snapshots of
	// containers with the runtime ([ContainerSpec].Runtime) cannot have Memory.
	KeepsMemory(runtime string) error

	// RemoveSnapshot removes a snapshot. The files that a container or another snapshot needs of it
	// are removed with the last of them. Removing a missing snapshot succeeds.
	RemoveSnapshot(ctx context.Context, name string) error

	// ListSnapshots returns every snapshot that was made as a whole and not removed, in no order.
	ListSnapshots(ctx context.Context) ([]Snapshot, error)

	// Suspend ends the container's processes, with a SIGTERM to the first and after grace with a
	// SIGKILL to all, and keeps what they have written: the container is [StatusStopped] then, and
	// Start starts it on its files. A call that fails, or is cut off, can be repeated, also when
	// the processes have ended meanwhile. Suspend returns [ErrNotFound], [ErrNotRunning] for a
	// container that was not started or whose files are lost, and [ErrNoRoom] before anything ends.
	Suspend(ctx context.Context, id string, grace time.Duration) error

	// Hibernate writes the processes of a container that is frozen to the disk, as a snapshot with
	// Memory does, and ends them: the container is [StatusStopped] then, and Start has them go on,
	// on the container's files. Their connections to the outside have ended, and the container's
	// address may be another one. Where they cannot be restored any more, Start starts the container
	// on its files alone, and [Container].RestoreError says why. The processes on the disk are no
	// snapshot. The next start, a Rollback and a Suspend remove them, and so does a removal of the
	// container.
	//
	// A call that fails, or is cut off, leaves the container frozen as before, or stopped as a whole.
	// The call can be repeated. When ctx ends before the processes are on the disk, they stay where
	// they are. Hibernate returns [ErrNotFound], [ErrNotRunning] for one that is neither frozen
	// nor hibernated, [ErrNoRoom], and [ErrNoMemory] where KeepsMemory does.
	Hibernate(ctx context.Context, id string) error

	// Rollback ends the processes of a container and gives it the files of a snapshot in place of
	// its own: it is [StatusStopped] then, and Start starts it on them. It has the same name, and
	// may have another ID. The snapshot is of the same image. A call that fails, or is cut off,
	// leaves the container with its own files or with those of the snapshot, and can be repeated.
	// Rollback returns [ErrNotFound], [ErrNoSnapshot], [ErrNoRoom], and [ErrInvalid] for a snapshot
	// of another image.
	//
	// After a rollback to a snapshot with Memory, Start has the processes of the snapshot go on.
	// Their connections to the outside have ended, and the container's address may be another one.
	// Where they cannot be restored any more, Start starts the container on the snapshot's files
	// alone, and [Container].RestoreError says why. Rollback returns [ErrInvalid] for such a
	// snapshot of another container, and [ErrNoMemory], before anything has changed, where the
	// runtime or the processor is another one than that of the snapshot.
	Rollback(ctx context.Context, id, name string) error

	// CompareSnapshots calls visit for each file in which a snapshot differs from another one of
	// the same image, or from the image where from is empty. A directory comes before what is in
	// it, and names in a directory are sorted by their bytes; a directory that was removed stands
	// for everything in it. An error of visit ends the comparison, and is returned.
	// CompareSnapshots returns [ErrNoSnapshot], [ErrSnapshotTooLarge], and [ErrInvalid] for
	// snapshots of different images.
	CompareSnapshots(ctx context.Context, from, to string, visit func(FileChange) error) error

	// ArchiveSnapshot writes what CompareSnapshots compares as a layer of an image: a tar archive
	// with the files that the snapshot has, and whiteouts for those that it has not. Errors are as
	// of CompareSnapshots; ErrInvalid is also for files that a layer cannot have.
	ArchiveSnapshot(ctx context.Context, from, to string, w io.Writer) error

	// DigestSnapshot returns the digest of the files of a snapshot: "sha256:" and 64 hexadecimal
	// digits. Two snapshots of an image have the same one when their files are equal, but for their
	// times and holes, however they came about. The first call for a snapshot reads its files, and
	// gives way to everything else on the host. DigestSnapshot returns [ErrNoSnapshot],
	// [ErrSnapshotTooLarge] and [ErrInvalid].
	DigestSnapshot(ctx context.Context, name string) (string, error)

	// ExportSnapshot makes an image of a snapshot, with the layers of the snapshot's image, one or
	// more of its own, and the same entrypoint, environment, user and working directory. The image
	// gets the name ref, which another image may have had. ExportSnapshot returns [ErrNoSnapshot],
	// [ErrSnapshotTooLarge], [ErrNoRoom], [ErrInvalid] for a name that images cannot have, and
	// [ErrImage] for files that an image cannot have; then nothing has the name.
	ExportSnapshot(ctx context.Context, name, ref string) (Image, error)
}

// Ability is what an engine with snapshots can do.
type Ability string

// The abilities.
const (
	// AbilitySnapshots stands for every method that no other ability stands for, and for
	// [ContainerSpec].Snapshot.
	AbilitySnapshots Ability = "snapshots"
	// AbilityComparison stands for CompareSnapshots, ArchiveSnapshot and DigestSnapshot.
	AbilityComparison Ability = "comparison"
	// AbilitySuspension stands for Suspend and Hibernate.
	AbilitySuspension Ability = "suspension"
)

// FileChange is a file in which two states differ.
type FileChange struct {
	Path string // absolute, of any bytes
	Kind ChangeKind
	Type FileType // of the file as it is, or as it was when it was removed
	Size int64    // of its content, or of a symbolic link's target; 0 for directories
}

// ChangeKind is what has become of a file.
type ChangeKind string

// The kinds of changes. A file is modified when its type, owner, mode, extended attributes, time of
// change or content differs, and a directory when its owner, mode or extended attributes do.
const (
	ChangeAdded    ChangeKind = "added"
	ChangeModified ChangeKind = "modified"
	ChangeRemoved  ChangeKind = "removed"
)

// FileType is what a file is.
type FileType string

// The types of files.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other"
)

// SnapshotOptions say what a snapshot is called and what it may take.
type SnapshotOptions struct {
	Name     string            // as of a volume; unique
	Labels   map[string]string // kept with it
	MaxBytes int64             // of Exclusive; 0 means no bound but the disk
	Memory   bool              // keeps the processes, too
}

// Snapshot describes a snapshot.
type Snapshot struct {
	Name    string
	Labels  map[string]string
	ImageID string // of the image that it adds to
	// Bytes is what the container had written, as blocks of its files and at least 512 for each;
	// Exclusive is the part of it that no earlier snapshot has, and which takes room on the disk.
	// It grows when an earlier one is removed, by what that may have shared with it, and by what
	// stays of it because this one needs it. So it can be more than Bytes.
	Bytes, Exclusive int64
	Files            int  // how many names of files, directories and links it has; 0 where the engine does not count them
	Memory           bool // it has the container's processes, too, which Bytes and Exclusive count
	// Frozen is for how long the container's processes did not run; 0 when they did not run before.
	Frozen  time.Duration
	Created time.Time
}
