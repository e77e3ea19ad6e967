package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// record is what the disk has of a container. It is written before what it describes is made, and never synced: a service that is killed
// loses no page cache, and after a power loss nothing of a container is left that a record would be needed for.
type record struct {
	ID      string
	Spec    engine.ContainerSpec
	Runtime string // what the container is run with; the name or path that it was found by
	// Run is what a start makes, or has made, at the kernel; nil when nothing of it is left.
	Run *runRecord `json:",omitempty"`
	// StartError is why the last start failed.
	StartError string `json:",omitempty"`
	// Removing is set before anything is removed: a removal is finished, whoever began it.
	Removing bool `json:",omitempty"`
}

// runRecord is what the disk has of one start of a container.
type runRecord struct {
	BootID string // the kernel that it is, or was, part of
	// Users is the first of the host's user ids that are the container's, in a user namespace; 0 when it has the host's.
	Users   int                 `json:",omitempty"`
	Network *network.Attachment `json:",omitempty"` // nil without a network of its own
	// Process is the container's first process. PID is 0 from before it exists until it is known to have started.
	Process keeper.Process
}

// write replaces the record on the disk.
func (r *record) write(at containerFolder) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replaceFile(at.record(), content)
}

func readRecord(at containerFolder) (record, error) {
	var r record
	content, err := os.ReadFile(at.record())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("%s: %w", at.record(), err)
	}
	if r.ID != filepath.Base(string(at)) {
		return r, fmt.Errorf("%s is the record of container %q", at.record(), r.ID)
	}
	return r, nil
}

func diskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// replaceFile writes a file that is there as a whole, or as it was before.
func replaceFile(path string, content []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
