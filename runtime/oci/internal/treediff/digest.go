package treediff

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// digestVersion is what a digest begins with: another one of the same files when their description
// changes.
const digestVersion = "sandbox tree 1"

// maxGroups bounds how many files with several names are in memory.
const maxGroups = 2_000_000

// Digest returns the digest of the files that the second state has in place of those of the first
// one, which identity identifies: the same for the same files, whatever layers have them. The
// digest covers paths, types, owners, modes, extended attributes, contents, symbolic links, device
// numbers, which of the paths are one file, and removals; neither times nor holes. Files that are
// equal to those of the first state are left out, also where they were written again.
//
// known are hashes of contents; used are those that the digest was made of, by the directories of
// the layers.
func Digest(ctx context.Context, states States, identity string, known Hashes) (digest string, used map[string]Hashes, err error) {
	d := &digester{hasher: hasher{known: known, used: map[int]Hashes{}}, sum: sha256.New(), groups: map[inode]*group{}}
	if err := walkStates(ctx, states, d.find); err != nil {
		return "", nil, err
	}
	maps.DeleteFunc(d.groups, func(_ inode, g *group) bool { return g.names < 2 })
	d.field(digestVersion, identity)
	if err := walkStates(ctx, states, d.visit); err != nil {
		return "", nil, err
	}
	used = map[string]Hashes{}
	for directory, layer := range d.layers {
		used[directory] = d.used[layer]
	}
	return "sha256:" + hex.EncodeToString(d.sum.Sum(nil)), used, nil
}

// digester is one call of Digest.
type digester struct {
	hasher
	sum    hash.Hash
	groups map[inode]*group // of several names, by the file
	files  uint64           // how many are in the digest, without further names
	layers map[string]int   // positions, by the directories; nil while nothing was found
}

// group is the names that one file has in the second state.
type group struct {
	names int
	// from is the file that the first state has at all of these names; same is false when there is
	// not one.
	from  inode
	same  bool
	first uint64 // which file of the digest it is, counted from 1; 0 while it is not in the digest
}

// find finds the files that have several names.
func (d *digester) find(_ *walk, c change) error {
	if c.to == nil || c.to.isDirectory() || c.to.info.Nlink < 2 {
		return nil
	}
	var from inode
	if c.from != nil {
		from = inode{c.from.info.Dev, c.from.info.Ino}
	}
	key := inode{c.to.info.Dev, c.to.info.Ino}
	g := d.groups[key]
	if g == nil {
		if len(d.groups) >= maxGroups {
			return fmt.Errorf("%w: more than %d files have several names", engine.ErrSnapshotTooLarge, maxGroups)
		}
		g = &group{from: from, same: c.from != nil}
		d.groups[key] = g
	}
	g.names++
	g.same = g.same && g.from == from
	return nil
}

func (d *digester) visit(w *walk, c change) error {
	d.layers = w.layers.index
	if c.to == nil {
		d.field("removed", c.name)
		return nil
	}
	equal, err := d.equal(w, c)
	if err != nil {
		return err
	}
	var g *group
	if !c.to.isDirectory() {
		g = d.groups[inode{c.to.info.Dev, c.to.info.Ino}]
	}
	switch {
	case equal && (g == nil || g.same):
		return nil
	case g != nil && g.first != 0:
		d.field("link", c.name)
		d.number(g.first)
		return nil
	}
	d.files++
	if g != nil {
		g.first = d.files
	}
	return d.file(w, c)
}

// equal reports whether the first state has the same file, but for times and names.
func (d *digester) equal(w *walk, c change) (bool, error) {
	if c.from == nil {
		return false, nil
	}
	equal, err := w.equalAttributes(c)
	if err != nil || !equal {
		return false, err
	}
	switch c.to.kind() {
	case unix.S_IFREG:
		if c.from.info.Size != c.to.info.Size {
			return false, nil
		}
		had, err := d.of(w, c, c.from)
		if err != nil {
			return false, err
		}
		has, err := d.of(w, c, c.to)
		return had == has, err
	case unix.S_IFLNK:
		return w.equalLinks(c)
	}
	return true, nil
}

// file adds a file with all that the digest covers.
func (d *digester) file(w *walk, c change) error {
	info := &c.to.info
	d.field("file", c.name)
	d.number(uint64(info.Mode), uint64(info.Uid), uint64(info.Gid))
	switch c.to.kind() {
	case unix.S_IFREG:
		content, err := d.of(w, c, c.to)
		if err != nil {
			return err
		}
		d.number(uint64(info.Size)) //nolint:gosec // never negative
		d.field(string(content[:]))
	case unix.S_IFLNK:
		target, err := w.target(c, c.to)
		if err != nil {
			return err
		}
		d.field(target)
	case unix.S_IFCHR, unix.S_IFBLK:
		d.number(info.Rdev)
	}
	attributes, err := w.attributes(c, c.to)
	if err != nil {
		return err
	}
	d.number(uint64(len(attributes)))
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		d.field(name, attributes[name])
	}
	return nil
}

// field adds texts of any bytes, each behind its length.
func (d *digester) field(texts ...string) {
	for _, text := range texts {
		d.number(uint64(len(text)))
		_, _ = d.sum.Write([]byte(text)) // a hash takes every write
	}
}

func (d *digester) number(numbers ...uint64) {
	for _, number := range numbers {
		var bytes [8]byte
		binary.BigEndian.PutUint64(bytes[:], number)
		_, _ = d.sum.Write(bytes[:])
	}
}
