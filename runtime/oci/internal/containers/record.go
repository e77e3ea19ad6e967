package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// testName is the name of the container that tests user namespaces; no other can be called so.
const testName = ".trial"

// Record is what the disk has of a container. It is written before what it describes is made, and never synced: a service that is killed
// loses no page cache, and after a power loss nothing of a container is left that a record would be needed for.
type Record struct {
	ID      string
	Spec    engine.ContainerSpec
	Runtime string // the OCI runtime of the container; the name or path that it was found by
	// Run is what a start makes, or has made, at the kernel; nil when nothing of it is left.
	Run *Run `json:",omitempty"`
	// StartError is why the last start failed.
	StartError string `json:",omitempty"`
	// Removing is set before anything is removed: a removal is finished, even by a later service.
	Removing bool `json:",omitempty"`
}

// Run is what the disk has of one start of a container.
type Run struct {
	BootID string // the kernel that it is, or was, part of
	// Users is the first of the host's user ids that are the container's, in a user namespace; 0 when it has the host's.
	Users   int                 `json:",omitempty"`
	Network *network.Attachment `json:",omitempty"` // nil without a network of its own
	// Process is the container's first process. PID is 0 from before it exists until it is known to have started.
	Process keeper.Process
}

// TestSpec makes the spec that of a container that tests user namespaces. The image is not among those in use.
func TestSpec(spec engine.ContainerSpec) engine.ContainerSpec {
	spec.Name = testName
	return spec
}

// IsTest reports whether the container tests user namespaces; see [TestSpec].
func (r *Record) IsTest() bool { return r.Spec.Name == testName }

// Started reports whether the container's first process is, or was, known to run.
func (r *Record) Started() bool { return r.Run != nil && r.Run.Process.PID != 0 }

// write replaces the record on the disk.
func (r *Record) write(at layout.Container) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return layout.ReplaceFile(at.Record(), content)
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
