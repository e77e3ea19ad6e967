package treediff

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"io"
	"maps"
	"os"

	"golang.org/x/sys/unix"
)

// Content identifies the content of a regular file of a layer, which never changes: no other file
// has had the inode at the time that it was made at.
type Content struct {
	Inode      uint64
	Made, Size int64 // nanoseconds since 1970; bytes
}

// Hash is the hash of a content.
type Hash [sha256.Size]byte

// Hashes are the hashes of contents.
type Hashes map[Content]Hash

// savedHash is what a file has of each.
type savedHash struct {
	Content
	Hash Hash
}

// Write writes a digest, which may be empty, and hashes.
func (h Hashes) Write(to io.Writer, digest string) error {
	buffered := bufio.NewWriter(to)
	encoder := gob.NewEncoder(buffered)
	err := encoder.Encode(digest)
	for content, hash := range h {
		if err == nil {
			err = encoder.Encode(savedHash{content, hash})
		}
	}
	if err == nil {
		// The end: a file that was cut off has none.
		err = encoder.Encode(savedHash{})
	}
	return errors.Join(err, buffered.Flush())
}

// Read adds hashes that Write has written, and returns the digest. After an error there are none of
// them.
func (h Hashes) Read(from io.Reader) (digest string, err error) {
	decoder, read := gob.NewDecoder(bufio.NewReader(from)), Hashes{}
	if err := decoder.Decode(&digest); err != nil {
		return "", err
	}
	for {
		var one savedHash
		if err := decoder.Decode(&one); err != nil {
			return "", err
		}
		if one == (savedHash{}) {
			maps.Copy(h, read)
			return digest, nil
		}
		read[one.Content] = one.Hash
	}
}

// MaxHashes bounds the hashes that a digest adds to those that it is given, and those that it
// returns. Contents beyond that are read again by the next digest.
const MaxHashes = 1_000_000

// hasher hashes contents, each once but for those beyond MaxHashes.
type hasher struct {
	known Hashes
	used  map[int]Hashes // by layers
	kept  int            // hashes in used
}

// of returns the hash of what a regular file has.
func (h *hasher) of(w *walk, c change, f *file) (hash Hash, err error) {
	opened, err := w.openContent(c, f)
	if err != nil {
		return hash, err
	}
	defer func() { _ = opened.Close() }()
	var info unix.Statx_t
	err = unix.Statx(int(opened.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_SIZE|unix.STATX_BTIME, &info)
	if err != nil {
		return hash, &os.PathError{Op: "stat", Path: shown(c.name), Err: err}
	}
	size := int64(info.Size) //nolint:gosec // the kernel's are signed
	content := Content{Inode: info.Ino, Made: info.Btime.Sec*1e9 + int64(info.Btime.Nsec), Size: size}
	hash, ok := h.known[content]
	if !ok {
		if hash, err = hashContent(w.ctx, opened, size); err != nil {
			return hash, &os.PathError{Op: "hash", Path: shown(c.name), Err: err}
		}
	}
	if info.Mask&unix.STATX_BTIME != 0 {
		h.keep(f.layer, content, hash)
	}
	return hash, nil
}

func (h *hasher) keep(layer int, content Content, hash Hash) {
	if _, has := h.used[layer][content]; has || h.kept >= MaxHashes {
		return
	}
	if h.used[layer] == nil {
		h.used[layer] = Hashes{}
	}
	h.known[content], h.used[layer][content] = hash, hash
	h.kept++
}

// blockBytes is the size of the blocks that a content is hashed in.
const blockBytes = 4096

// hashContent returns the SHA-256 of the blocks that are not all zeros, each behind its offset in
// eight bytes. So holes are not read, and make no difference.
func hashContent(ctx context.Context, from *os.File, size int64) (hash Hash, err error) {
	sum, buffer := sha256.New(), make([]byte, pieceBytes)
	fd := int(from.Fd())
	for offset := int64(0); offset < size; {
		start, err := unix.Seek(fd, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= size { // a hole up to the end
			break
		}
		if err != nil {
			return hash, err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return hash, err
		}
		offset = max(offset, start/blockBytes*blockBytes)
		end = min(size, (end+blockBytes-1)/blockBytes*blockBytes)
		for offset < end {
			if err := ctx.Err(); err != nil {
				return hash, err
			}
			piece := buffer[:min(pieceBytes, end-offset)]
			if _, err := from.ReadAt(piece, offset); err != nil {
				return hash, err
			}
			hashBlocks(sum, piece, offset)
			offset += int64(len(piece))
		}
	}
	return Hash(sum.Sum(nil)), nil
}

var zeros [blockBytes]byte

func hashBlocks(sum io.Writer, piece []byte, offset int64) {
	for at := 0; at < len(piece); at += blockBytes {
		block := piece[at:min(at+blockBytes, len(piece))]
		if bytes.Equal(block, zeros[:len(block)]) {
			continue
		}
		var position [8]byte
		binary.BigEndian.PutUint64(position[:], uint64(offset+int64(at))) //nolint:gosec // never negative
		_, _ = sum.Write(position[:])                                     // a hash takes every write
		_, _ = sum.Write(block)
	}
}
