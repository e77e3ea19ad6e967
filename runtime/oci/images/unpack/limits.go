package unpack

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// Limits bound what the layers of one image take together. Several layers may be unpacked within
// the same Limits at once.
type Limits struct {
	Bytes   int64 // of the archives when they are decompressed, and of the files with their holes, each
	Entries int64 // files, links and directories, with those directories that only the names of others imply

	read, written, entries atomic.Int64
}

// What things take on a disk beside their content. File systems differ; this is about what ext4
// needs.
const (
	blockBytes  = 4096
	inodeBytes  = 256
	inlineBytes = 59 // of the target of a symbolic link, or of attributes: the inode has room for them
)

func onDisk(size int64) int64 { return inBlocks(size) + inodeBytes }

// beside returns what the target of a symbolic link, or attributes, of size bytes take beside the
// inode.
func beside(size int64) int64 {
	if size <= inlineBytes {
		return 0
	}
	return inBlocks(size)
}

func inBlocks(size int64) int64 { return (size + blockBytes - 1) / blockBytes * blockBytes }

// add counts one entry of size bytes, before it is made. What it takes of the disk is reserved by
// take.
func (l *layer) add(size int64) error {
	if n := l.limits.entries.Add(1); n > l.limits.Entries {
		return refusedf("the image has more than %d files and directories", l.limits.Entries)
	}
	// Each by itself, so that no sum overflows.
	if size > l.limits.Bytes {
		return refusedf("the image takes more than %d bytes on the disk", l.limits.Bytes)
	}
	return l.addBytes(onDisk(size))
}

// addBytes counts what something takes of the disk beside what add counted for its entry.
func (l *layer) addBytes(size int64) error {
	if n := l.limits.written.Add(size); n > l.limits.Bytes {
		return refusedf("the image takes more than %d bytes on the disk", l.limits.Bytes)
	}
	return nil
}

// take reserves what size bytes take of the disk, before they are written.
func (l *layer) take(size int64) error {
	if l.reserve != nil {
		if err := l.reserve(size); err != nil {
			return err
		}
	}
	l.result.Bytes += size
	return nil
}

// addWhole counts and reserves one entry that has no holes.
func (l *layer) addWhole(size int64) error {
	if err := l.add(size); err != nil {
		return err
	}
	return l.take(onDisk(size))
}

// meteredReader counts the decompressed archive, and ends with the context. What it failed with is
// kept, because archive/tar reports its own errors instead of some.
type meteredReader struct {
	ctx    context.Context
	source io.Reader
	limits *Limits
	failed error
}

func (r *meteredReader) Read(p []byte) (int, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	if err := r.ctx.Err(); err != nil {
		r.failed = err
		return 0, err
	}
	n, err := r.source.Read(p)
	if r.limits.read.Add(int64(n)) > r.limits.Bytes {
		err = refusedf("the image decompresses to more than %d bytes", r.limits.Bytes)
	}
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}

// explain returns why reading the archive failed.
func (r *meteredReader) explain(err error) error {
	switch {
	case r.failed != nil:
		return r.failed
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refusedf("the archive ends within an entry")
	}
	return refusedf("the archive is broken: %v", err)
}
