package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// testName is the name of the container that tests user namespaces; no other can be called so.
const testName = ".trial"

// Record is what the disk has of a container. It is written before what it describes is made. A
// service that is killed loses no page cache, and after a loss of power nothing of most containers
// is left that a record would be needed for: only the record of one whose files are kept is synced.
type Record struct {
	ID      string
	Spec    engine.ContainerSpec
	Runtime string // the OCI runtime of the container; the name or path that it was found by
	// Base are the snapshots that the container lies on, above the image, lowest first.
	Base []string `json:",omitempty"`
	// Source identifies what the container writes to: another one is made at each start that does
	// not go on with the files of an earlier one.
	Source string `json:",omitempty"`
	// Fresh is set while a container that is Stopped begins with no files but those of Base,
	// because it was rolled back.
	Fresh bool `json:",omitempty"`
	// Restore is the snapshot, of Base, whose processes the next start gives the container; empty
	// for a start of its program. Restored is set while it has those of a snapshot, and
	// RestoreError is why it does not, although it was rolled back to them.
	Restore      string `json:",omitempty"`
	Restored     bool   `json:",omitempty"`
	RestoreError string `json:",omitempty"`
	// Memory is what the next start depends on that has the processes go on that the container had
	// when it was hibernated: they are in its directory. It is set before they end, and a container
	// is not thawed while it is.
	Memory *snapshots.Memory `json:",omitempty"`
	// Run is what a start makes, or has made, at the kernel; nil when nothing of it is left.
	Run *Run `json:",omitempty"`
	// Published is what the last start has published, without an address: the next one publishes
	// the same ports of the host where no other process has them.
	Published *network.Attachment `json:",omitempty"`
	// StartError is why the last start failed.
	StartError string `json:",omitempty"`
	// Stopped is set while its processes are gone and its files are kept: the next start uses these
	// as they are. A container that was started again is no longer Stopped once its first process
	// is known to run.
	Stopped bool `json:",omitempty"`
	// Volatile is set for good once the container was suspended although what it writes was not to
	// outlive a reboot: that holds for the later starts on its files, too.
	Volatile bool `json:",omitempty"`
	// Removing is set before anything is removed: a removal is finished, even by a later service.
	Removing bool `json:",omitempty"`
}

// Run is what the disk has of one start of a container.
type Run struct {
	BootID string // the kernel that it is, or was, part of
	// Users is the first of the host's user ids that are the container's, in a user namespace; 0
	// when it has the host's.
	Users   int                 `json:",omitempty"`
	Network *network.Attachment `json:",omitempty"` // nil without a network of its own
	// Keeps is whether what the container writes can be used after a reboot.
	Keeps bool `json:",omitempty"`
	// Suspends is set before the processes are ended of a container whose files are to be kept.
	Suspends bool `json:",omitempty"`
	// GPUs are the full names of the GPUs that the container alone has while it runs.
	GPUs []string `json:",omitempty"`
	// Process is the container's first process. PID is 0 from before it exists until it is known to
	// have started.
	Process keeper.Process
}

// TestSpec makes the spec that of a container that tests user namespaces. The image is not among
// those in use.
func TestSpec(spec engine.ContainerSpec) engine.ContainerSpec {
	spec.Name = testName
	return spec
}

// IsTest reports whether the container tests user namespaces; see [TestSpec].
func (r *Record) IsTest() bool { return r.Spec.Name == testName }

// Started reports whether the container's first process is, or was, known to run.
func (r *Record) Started() bool { return r.Run != nil && r.Run.Process.PID != 0 }

// KeepsFiles reports whether what the container has written is of use when its processes are gone.
func (r *Record) KeepsFiles() bool {
	return r.Stopped || r.Started() && (r.Run.Keeps || r.Run.Suspends)
}

// write replaces the record on the disk.
func (r *Record) write(at layout.Container) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if r.KeepsFiles() {
		return layout.ReplaceFileSynced(at.Record(), content)
	}
	return layout.ReplaceFile(at.Record(), content)
}

// prepare writes the record of a container that keeps its files to a file beside the present one,
// which replace puts in its place.
func (r *Record) prepare(at layout.Container, suffix string) (replace func() error, err error) {
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return layout.PrepareFileSynced(at.Record(), suffix, content)
}

func readRecord(at layout.Container) (Record, error) {
	var r Record
	content, err := os.ReadFile(at.Record())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("%s: %w", at.Record(), err)
	}
	if r.ID != filepath.Base(string(at)) {
		return r, fmt.Errorf("%s is the record of container %q", at.Record(), r.ID)
	}
	return r, nil
}
