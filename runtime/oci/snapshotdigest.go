package oci

import (
	"bytes"
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treediff"
	"sandbox.internal/runtime/oci/thread"
)

// DigestedFailpoint: the digest of a snapshot is known, and the disk does not have it.
const DigestedFailpoint = "snapshot-digested"

// DigestSnapshot implements [engine.Snapshots].
func (e *Engine) DigestSnapshot(ctx context.Context, name string) (digest string, err error) {
	err = e.withSnapshots(ctx, "digest snapshot "+name, "", name, func(ctx context.Context, record snapshots.Record, states treediff.States) error {
		known := treediff.Hashes{}
		if digest = e.readHashes(record.TreeID(), known); digest != "" {
			return nil
		}
		for _, id := range e.snapshots.Related(record) {
			if len(known) >= treediff.MaxHashes { // without the others more is read
				break
			}
			e.readHashes(id, known)
		}
		var used map[string]treediff.Hashes
		thread.Run(func() {
			giveWay()
			digest, used, err = treediff.Digest(ctx, states, record.ImageID, known)
		})
		if err != nil {
			return err
		}
		failpoint.Hit(DigestedFailpoint)
		e.writeHashes(record, digest, used)
		return nil
	})
	if err != nil {
		return "", err
	}
	return digest, nil
}

// giveWay has this thread run when no other one of the host wants the processor or the disk.
func giveWay() {
	const (
		leastNice    = 19
		ofProcess    = 1       // IOPRIO_WHO_PROCESS
		idlePriority = 3 << 13 // IOPRIO_CLASS_IDLE
	)
	// Without either it is a thread as others are.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, leastNice)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ofProcess, 0, idlePriority)
}

// readHashes adds the hashes that were made of a snapshot's tree, if there are any, and returns the
// digest of the snapshot; empty when it is not known.
func (e *Engine) readHashes(id string, known treediff.Hashes) string {
	file, err := os.Open(e.snapshots.Hashes(id))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	digest, err := known.Read(file)
	if err != nil { // such as after a loss of power
		e.log.Debug().Err(err).Str("snapshot", id).Msg("the hashes of a snapshot cannot be read")
	}
	return digest
}

// writeHashes keeps the digest of a snapshot, with the hashes of its own tree and of its image, and
// those of the trees below that have none. Without them the next digest reads more.
func (e *Engine) writeHashes(record snapshots.Record, digest string, used map[string]treediff.Hashes) {
	own := treediff.Hashes{}
	trees := map[string]string{}
	for _, id := range record.Base {
		trees[e.snapshots.Tree(id)] = id
	}
	var errs []error
	for directory, hashes := range used {
		id, below := trees[directory]
		if !below {
			for content, hash := range hashes {
				own[content] = hash
			}
			continue
		}
		if _, err := os.Lstat(e.snapshots.Hashes(id)); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, e.replaceHashes(id, "", hashes))
		}
	}
	errs = append(errs, e.replaceHashes(record.TreeID(), digest, own))
	if err := errors.Join(errs...); err != nil {
		e.log.Warn().Err(err).Str("snapshot", record.Name).Msg("cannot keep the hashes of a snapshot; the next digest reads its files again")
	}
}

func (e *Engine) replaceHashes(id, digest string, hashes treediff.Hashes) error {
	var content bytes.Buffer
	if err := hashes.Write(&content, digest); err != nil {
		return err
	}
	defer e.snapshots.WeighLists(id)
	return layout.ReplaceFile(e.snapshots.Hashes(id), content.Bytes())
}
