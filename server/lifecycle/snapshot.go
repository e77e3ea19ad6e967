package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// SnapshotStore keeps the files of sandboxes and gives them to others. It is an ability that not
// every backend has. Errors that a client may see are of type *[Error]; where the engine of a
// backend has no snapshots, every method returns KindUnsupported.
type SnapshotStore interface {
	// TakeSnapshot records a snapshot of a Running or Paused sandbox, Creating, and returns it; the
	// rest goes on behind. It returns KindNotFound, KindConflict for another state of the sandbox
	// and for more snapshots than the owner may have, and KindInvalid for a request that breaks a
	// rule. It returns KindUnsupported for the kind memory where the sandbox's runtime class has no
	// such snapshots.
	TakeSnapshot(ctx context.Context, sandboxID string, request SnapshotRequest) (Snapshot, error)

	// AwaitSnapshot waits until the snapshot is not Creating, is forgotten, the time is up or ctx
	// ends, whatever comes first, and returns the snapshot as it was last seen. It returns
	// KindNoSnapshot.
	AwaitSnapshot(ctx context.Context, id string, atMost time.Duration) (Snapshot, error)

	// Snapshot returns a snapshot. It returns KindNoSnapshot.
	Snapshot(ctx context.Context, id string) (Snapshot, error)

	// Snapshots returns a page of those that match, newest first, ties by id.
	Snapshots(ctx context.Context, filter SnapshotFilter, page Page) (SnapshotListing, error)

	// DeleteSnapshot removes a snapshot; it returns once the snapshot is Deleting, durably, and the
	// rest goes on behind. Sandboxes that began with it, or were rolled back to it, keep their
	// files. It returns KindNoSnapshot, also for one that is Deleting.
	DeleteSnapshot(ctx context.Context, id string) error

	// Suspend ends the processes of a Running sandbox and keeps its files: the sandbox is Pausing,
	// and Paused once that is done. Resume starts its entrypoint again. It returns KindNotFound, and
	// KindConflict for another state.
	Suspend(ctx context.Context, sandboxID string) error

	// DiffSnapshot returns the first files, at most limit, in which a snapshot differs from its
	// image; where to is not empty, those in which the snapshot to differs from the snapshot. It
	// returns KindNoSnapshot, and KindConflict for snapshots that are not Ready or of different
	// images, and for more files than can be compared.
	DiffSnapshot(ctx context.Context, id, to string, limit int) (SnapshotDiff, error)

	// ArchiveSnapshotDiff returns the whole difference that DiffSnapshot is about, as a layer of an
	// image in a tar archive, which the caller closes. The errors are those of DiffSnapshot, some
	// of them at the first read, and KindConflict for too many archives of an owner at once.
	ArchiveSnapshotDiff(ctx context.Context, id, to string) (io.ReadCloser, error)

	// ExportSnapshot makes an image of a snapshot, under a name, and returns it: the layers of the
	// snapshot's image and one more. Every key may use it, as an image that was loaded. It returns
	// KindNoSnapshot, KindInvalid for the name, and KindConflict for a snapshot that is not Ready
	// and for files that no image can have.
	ExportSnapshot(ctx context.Context, id, name string) (Image, error)

	// Lineage returns the snapshots and sandboxes that a sandbox is related to: those that its
	// files come from, those that began with its files, and so on, also over snapshots and
	// sandboxes that are gone. owner keeps those of one owner; nil keeps all. It returns
	// KindNotFound.
	Lineage(ctx context.Context, sandboxID string, owner *string) (Lineage, error)

	// Rollback gives a Running or Paused sandbox the files of one of its snapshots, or of one that
	// its own files come from: the sandbox is Resuming when it returns, its processes are ended,
	// and it is Running once execd has answered again, with the same id, endpoints and token. It
	// returns KindNotFound, KindNoSnapshot, and KindConflict for another state, and for a snapshot
	// that is not Ready, of another image, or of another sandbox with another runtime class or
	// policy. With a snapshot of memory, of the same sandbox, the processes go on that the snapshot
	// has.
	Rollback(ctx context.Context, sandboxID, snapshotID string) error

	// Fork takes a snapshot of a Running or Paused sandbox and creates sandboxes that begin with
	// it. Each has its own id, token and address, and what the sandbox was created with, but for
	// its environment. The results are as many as were asked for. It returns an error when nothing
	// was created: those of TakeSnapshot, and of Create for what concerns all.
	Fork(ctx context.Context, sandboxID string, request ForkRequest, options CreateOptions) ([]ForkResult, error)
}

// FilesOnlyUnsupported returns the Error of KindUnsupported of a backend that pauses sandboxes with
// their memory alone.
func FilesOnlyUnsupported() error {
	return Unsupportedf("filesOnly: sandboxes are paused without their memory by the local engine alone (runtime.type = \"local\")")
}

// SnapshotKind is what a snapshot holds.
type SnapshotKind string

// The kinds of snapshots.
const (
	SnapshotFilesystem SnapshotKind = "filesystem" // the files of a sandbox, without its processes
	// SnapshotMemory is the files of a sandbox and its processes, with all that they have in memory.
	// It is of use to that sandbox alone, whose token the processes know.
	SnapshotMemory SnapshotKind = "memory"
)

// SnapshotState is where a snapshot stands. Clients must tolerate other values.
type SnapshotState string

// The states of a snapshot.
const (
	SnapshotCreating SnapshotState = "Creating" // being made
	SnapshotReady    SnapshotState = "Ready"    // whole, and durable
	SnapshotFailed   SnapshotState = "Failed"   // could not be made; nothing of it is left but the record
	SnapshotDeleting SnapshotState = "Deleting" // being removed; it cannot be used any more
)

// SnapshotStates lists every state of a snapshot.
func SnapshotStates() []SnapshotState {
	return []SnapshotState{SnapshotCreating, SnapshotReady, SnapshotFailed, SnapshotDeleting}
}

// Snapshot is a snapshot as a client may see it, and who owns it.
type Snapshot struct {
	ID        string
	SandboxID string // of the sandbox that the snapshot was taken of, which may be gone
	// ParentID is the snapshot that the sandbox's files came from, or were last kept in, when it
	// was taken; empty when there was none. It may be gone.
	ParentID string            `json:",omitempty"`
	Name     string            `json:",omitempty"`
	Comment  string            `json:",omitempty"`
	Metadata map[string]string `json:",omitempty"`
	Owner    string            // name of the API key that asked for it
	Kind     SnapshotKind
	Status   SnapshotStatus
	// Image is that of the sandbox, as it was named; EngineImage is the engine's id of it, empty
	// before the snapshot is Ready.
	Image       string
	EngineImage string `json:",omitempty"`
	// Size is what the sandbox had written, in bytes of disk; ExclusiveSize is what the snapshot
	// added to the disk when it was made, and what removed ones have left to it.
	Size, ExclusiveSize int64
	// TreeDigest is the digest of its files; empty until it is known.
	TreeDigest string `json:",omitempty"`
	// Frozen is for how long the sandbox's processes did not run.
	Frozen    time.Duration
	CreatedAt time.Time // UTC
	ExpiresAt time.Time `json:",omitzero"` // UTC; zero when it does not expire
	// Temporary is set for a snapshot that a fork has made for itself: lists do not show it, and it
	// is removed once the sandboxes that begin with it have it.
	Temporary bool `json:",omitempty"`
	// Origin is what a sandbox that begins with the snapshot gets where nothing else is asked for.
	Origin SnapshotOrigin
	// MaxBytes is the bound of its owner when it was asked for ([SnapshotRequest].MaxBytes).
	MaxBytes int64 `json:",omitempty"`
}

// SnapshotOrigin is what a snapshot keeps of the request that its sandbox was created with: neither
// its environment nor credentials.
type SnapshotOrigin struct {
	Entrypoint      []string       `json:",omitempty"`
	ImageEntrypoint bool           `json:",omitempty"`
	Resources       ResourceLimits `json:",omitempty"`
	// RuntimeClass and NetworkPolicy are also the widest that such a sandbox can have at its
	// creation.
	RuntimeClass  string         `json:",omitempty"`
	NetworkPolicy *NetworkPolicy `json:",omitempty"`
}

// SnapshotStatus is a state and why the snapshot is in it.
type SnapshotStatus struct {
	State            SnapshotState
	Reason           Reason `json:",omitempty"`
	Message          string `json:",omitempty"` // for people
	LastTransitionAt time.Time
}

// SnapshotFiles is what a backend's engine knows of a snapshot.
type SnapshotFiles struct {
	EngineImage         string
	Size, ExclusiveSize int64
	Frozen              time.Duration
}

// FoundSnapshot is a snapshot as a backend's engine has it.
type FoundSnapshot struct {
	SnapshotFiles
	// Record is the snapshot as it was when it was being taken; nil where that cannot be read.
	Record *Snapshot
}

// With returns the snapshot with what is known of its files.
func (s Snapshot) With(files SnapshotFiles) Snapshot {
	s.EngineImage, s.Size, s.ExclusiveSize, s.Frozen = files.EngineImage, files.Size, files.ExclusiveSize, files.Frozen
	return s
}

// Clone returns a copy that shares nothing mutable with the snapshot.
func (s Snapshot) Clone() Snapshot {
	s.Metadata = maps.Clone(s.Metadata)
	s.Origin.Entrypoint = slices.Clone(s.Origin.Entrypoint)
	s.Origin.Resources = maps.Clone(s.Origin.Resources)
	s.Origin.NetworkPolicy = s.Origin.NetworkPolicy.Clone()
	return s
}

// SnapshotRequest is what a client asks for. Validate checks it.
type SnapshotRequest struct {
	Name     string
	Comment  string
	Metadata map[string]string
	Kind     SnapshotKind
	TTL      time.Duration // 0 means that the snapshot does not expire
	Owner    string        // name of the API key that asks
	// IdempotencyKey makes a repeated request return the snapshot of the first one, for
	// [IdempotencyWindow], whatever has become of it; empty for none.
	IdempotencyKey string
	// MaxSnapshots and MaxBytes are how many snapshots the owner may have, and how many bytes they
	// may have added to the disk together; 0 is no limit.
	MaxSnapshots int
	MaxBytes     int64
}

// The limits of a request for a snapshot.
const (
	MaxSnapshotName    = 128  // bytes
	MaxSnapshotComment = 4096 // bytes
	MinSnapshotTTL     = 60 * time.Second
	MaxSnapshotTTL     = 10 * 365 * 24 * time.Hour
	MaxForks           = 100
)

// Validate returns an Error of KindInvalid that names the first field that breaks a rule, and the
// rule.
func (r SnapshotRequest) Validate() error {
	switch {
	case r.Kind != SnapshotFilesystem && r.Kind != SnapshotMemory:
		return Invalidf("kind: must be filesystem or memory, not %.40q", r.Kind)
	case len(r.Name) > MaxSnapshotName:
		return Invalidf("name: must have at most %d bytes, has %d", MaxSnapshotName, len(r.Name))
	case len(r.Comment) > MaxSnapshotComment:
		return Invalidf("comment: must have at most %d bytes, has %d", MaxSnapshotComment, len(r.Comment))
	case !utf8.ValidString(r.Name) || !utf8.ValidString(r.Comment):
		return Invalidf("name, comment: must be UTF-8")
	case r.TTL != 0 && (r.TTL < MinSnapshotTTL || r.TTL > MaxSnapshotTTL):
		return Invalidf("ttl: must be within %d and %d seconds, got %d",
			int64(MinSnapshotTTL/time.Second), int64(MaxSnapshotTTL/time.Second), int64(r.TTL/time.Second))
	}
	return validateMetadata(r.Metadata)
}

// Digest identifies what a client asked for, of a sandbox, as [Spec.Digest] does.
func (r SnapshotRequest) Digest(sandboxID string) string {
	hash := sha256.New()
	// Strings, numbers and maps of strings always encode, in one way only, and a hash takes every
	// write.
	_ = json.NewEncoder(hash).Encode([]any{"snapshot", sandboxID, r.Name, r.Comment, r.Metadata, r.Kind, r.TTL})
	return hex.EncodeToString(hash.Sum(nil))
}

// SnapshotFilter selects snapshots. Conditions are combined with AND; the zero value matches every
// snapshot that is not temporary.
type SnapshotFilter struct {
	SandboxID string
	States    []SnapshotState   // any of them
	Owner     *string           // nil means any owner
	Name      *string           // nil means any name
	Metadata  map[string]string // all of these pairs
}

// Match reports whether the snapshot passes the filter.
func (f SnapshotFilter) Match(s *Snapshot) bool {
	for key, value := range f.Metadata {
		if got, ok := s.Metadata[key]; !ok || got != value {
			return false
		}
	}
	return !s.Temporary && (f.Name == nil || s.Name == *f.Name) && (f.Owner == nil || s.Owner == *f.Owner) && (f.SandboxID == "" || s.SandboxID == f.SandboxID) &&
		(len(f.States) == 0 || slices.Contains(f.States, s.Status.State))
}

// SnapshotListing is one page of snapshots and how many there are in all.
type SnapshotListing struct {
	Items []Snapshot
	Total int
}

// SnapshotDiff is a part of the files in which a snapshot differs, in the order of a walk.
type SnapshotDiff struct {
	Items     []FileChange
	Truncated bool // there are more
}

// FileChange is a file that differs.
type FileChange struct {
	Path string // absolute, of any bytes
	Kind string // added, modified or removed
	Type string // file, directory, symlink or other; before the removal of one that was removed
	Size int64  // bytes
}

// MaxLineage is how many snapshots, and how many sandboxes, a lineage has.
const MaxLineage = 1000

// Lineage is a part of the forest of snapshots and sandboxes, oldest first.
type Lineage struct {
	Snapshots []Snapshot
	Sandboxes []LineageSandbox
	Truncated bool // there are more of either than MaxLineage; the newest are left out
}

// LineageSandbox is a sandbox in a lineage.
type LineageSandbox struct {
	Sandbox
	// ParentID is the sandbox whose snapshot it was created with; empty where there was none.
	ParentID string
}

// ForkRequest is what a client asks for.
type ForkRequest struct {
	Count   int           // 1..MaxForks
	Timeout time.Duration // of each fork; 0 means that of the sandbox
	Env     map[string]string
	// Snapshot is the request for the snapshot that the forks begin with.
	Snapshot SnapshotRequest
}

// ForkResult is one sandbox that a fork created, or why it was not.
type ForkResult struct {
	Sandbox Sandbox
	Err     error
}

// NoSnapshot returns an Error of KindNoSnapshot for the snapshot's id.
func NoSnapshot(id string) *Error {
	return &Error{Kind: KindNoSnapshot, Message: fmt.Sprintf("snapshot %.64q does not exist", id)}
}
