package snapshots

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
)

const (
	recordFile = "snapshot.json"
	indexFile  = "index"
	hashesFile = "hashes"
	// treeDirectory is an overlay's layer, with owners that count from 0 as in images.
	treeDirectory = "tree"
	// stagingDirectory has files that were copied while the container ran.
	stagingDirectory = "staging"
	// memoryDirectory has what the container's runtime has written of its processes.
	memoryDirectory = "memory"
)

// Record is what the disk has of a snapshot. It is written last: a directory without one is what is
// left of a snapshot that was cut off.
type Record struct {
	ID      string // of the directory; names can be used again
	Name    string
	Labels  map[string]string `json:",omitempty"`
	ImageID string
	// Base are the ids of the snapshots that the container began with, lowest first: the tree lies
	// on theirs.
	Base []string `json:",omitempty"`
	// Shares is the id of the snapshot whose tree, index and hashes this one has, because the upper
	// layer had not changed since; empty for one with its own.
	Shares string `json:",omitempty"`
	// Source identifies the upper layer that the tree is a copy of.
	Source           string
	Bytes, Exclusive int64 // of the tree
	Files            int
	Frozen           time.Duration
	Created          time.Time
	// Lists is what the index and the hashes of the tree take on the disk, in bytes. The store reads
	// it from there.
	Lists int64 `json:"-"`
	// Memory is what it has besides the tree; nil when that is nothing.
	Memory *Memory `json:",omitempty"`
	// Removed is set when the snapshot was removed, and something needs it.
	Removed bool `json:",omitempty"`
	// Merged are the ids of the snapshots whose trees the tree of this one has together, lowest
	// first; none for a snapshot that a caller has asked for. They may be gone.
	Merged []string `json:",omitempty"`
	// Sources identify the upper layers that a merged tree may share files with.
	Sources []string `json:",omitempty"`
}

// Memory is what a snapshot has of the processes of a container.
type Memory struct {
	Container string // the id of the container that they are of
	Runtime   string // the program that has written them, with its version
	Processor string // the features of the processor, separated by spaces
	// MachineID is set when the container has a machine id of its own, which is mounted.
	MachineID bool  `json:",omitempty"`
	Bytes     int64 // of the files, on the disk
}

// TreeID is the id of the snapshot whose tree, index and hashes this one has: its own, or that of
// an earlier one.
func (r Record) TreeID() string { return cmp.Or(r.Shares, r.ID) }

// Chain are the ids of the trees that a container has which begins with this one, lowest first: each
// is that of a snapshot.
func (r Record) Chain() []string { return append(slices.Clone(r.Base), r.TreeID()) }

// needs are the ids of the snapshots whose trees this one needs besides its own.
func (r Record) needs() []string {
	if r.Shares == "" {
		return r.Base
	}
	return r.Chain()
}

// Describe returns what a caller of the engine sees.
func (r Record) Describe() engine.Snapshot {
	s := engine.Snapshot{
		Name: r.Name, Labels: maps.Clone(r.Labels), ImageID: r.ImageID, Bytes: r.Bytes, Exclusive: r.Exclusive + r.Lists,
		Files: r.Files, Frozen: r.Frozen, Created: r.Created, Memory: r.Memory != nil,
	}
	if r.Memory != nil {
		s.Bytes, s.Exclusive = s.Bytes+r.Memory.Bytes, s.Exclusive+r.Memory.Bytes
	}
	return s
}

func (r Record) write(directory string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return layout.ReplaceFileSynced(filepath.Join(directory, recordFile), content)
}

// readRecord returns [os.ErrNotExist] for a directory without a record.
func readRecord(directory string) (Record, error) {
	var r Record
	path := filepath.Join(directory, recordFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(content, &r); err == nil && r.ID != filepath.Base(directory) {
		err = errors.New("record of another snapshot")
	}
	if err != nil {
		return r, fmt.Errorf("cannot read the record %s of a snapshot: %w (remove the file to give the snapshot up)", path, err)
	}
	r.Lists = listBytes(directory)
	return r, nil
}

// listBytes returns what the index and the hashes in the directory of a snapshot take on the disk.
// One that is not there, or cannot be looked at, takes nothing.
func listBytes(directory string) (bytes int64) {
	for _, name := range []string{indexFile, hashesFile} {
		var info unix.Stat_t
		if unix.Lstat(filepath.Join(directory, name), &info) == nil {
			bytes += info.Blocks * 512
		}
	}
	return bytes
}
