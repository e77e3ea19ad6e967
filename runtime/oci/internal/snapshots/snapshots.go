// Package snapshots has the snapshots of an Engine: their records and trees on the disk, and what
// needs each of them.
package snapshots

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/placement"
	"sandbox.internal/runtime/oci/internal/trash"
)

// Store has the snapshots. It is safe for concurrent use.
//
// The directory of a snapshot is thrown away when the snapshot was removed, no container and no
// other snapshot lies on its tree, and no other one shares it.
type Store struct {
	directory string
	trash     *trash.Trash
	using     func() []string // ids of the snapshots that containers lie on
	restoring func() []string // ids of those whose processes containers are to be given at their next start
	log       zerolog.Logger

	mu     sync.Mutex
	byID   map[string]Record
	holds  map[string]int  // by ids
	begins map[string]int  // by ids: those of holds whose caller may have a container begin with the snapshot
	making map[string]bool // by names

	merging chan struct{} // holds one while a chain is being merged
}

// Open reads the record of every snapshot, and throws away what an earlier service was making.
// using returns the ids of the snapshots that containers lie on, also of those that are being
// created; restoring returns those of them whose memory they are started with.
func Open(directory string, t *trash.Trash, using, restoring func() []string, log zerolog.Logger) (*Store, error) {
	s := &Store{
		directory: directory, trash: t, using: using, restoring: restoring, log: log,
		byID: map[string]Record{}, holds: map[string]int{}, begins: map[string]int{}, making: map[string]bool{}, merging: make(chan struct{}, 1),
	}
	if err := placement.MakeSpread(directory, layout.DirectoryMode); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		record, err := readRecord(path)
		if errors.Is(err, os.ErrNotExist) {
			err = t.Throw(path)
		} else if err == nil {
			s.byID[record.ID] = record
			if record.Memory == nil { // it may have been removed
				err = t.Throw(filepath.Join(path, memoryDirectory))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// List returns the snapshots that were not removed, with the bytes that removed ones have left to
// them.
func (s *Store) List() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, left := make([]Record, 0, len(s.byID)), s.left()
	for _, record := range s.byID {
		if !record.Removed {
			record.Exclusive += left[record.ID]
			list = append(list, record)
		}
	}
	return list
}

// Images returns the ids of the images that snapshots add to.
func (s *Store) Images() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, ids := map[string]bool{}, []string(nil)
	for _, record := range s.byID {
		if !seen[record.ImageID] {
			seen[record.ImageID] = true
			ids = append(ids, record.ImageID)
		}
	}
	return ids
}

// find returns the snapshot of the name. mu is held.
func (s *Store) find(name string) (Record, bool) {
	for _, record := range s.byID {
		if record.Name == name && !record.Removed {
			return record, true
		}
	}
	return Record{}, false
}

// Hold returns the snapshot of the name, of an image, for a container that is to begin with it, and
// keeps it with its memory until release is called. The error wraps [engine.ErrNoSnapshot], or
// [engine.ErrInvalid] for one of another image.
func (s *Store) Hold(name, imageID string) (_ Record, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record, ok := s.find(name)
	switch {
	case !ok:
		return Record{}, nil, fmt.Errorf("%w: %s", engine.ErrNoSnapshot, name)
	case record.ImageID != imageID:
		return Record{}, nil, fmt.Errorf("%w: snapshot: %s is of image %s, and the container of %s", engine.ErrInvalid, name, record.ImageID, imageID)
	}
	s.begins[record.ID]++
	letGo := s.hold(record.Chain()...)
	return record, sync.OnceFunc(func() {
		s.mu.Lock()
		if s.begins[record.ID]--; s.begins[record.ID] == 0 {
			delete(s.begins, record.ID)
		}
		s.mu.Unlock()
		letGo()
	}), nil
}

// HoldTwo returns two snapshots, of the same image, and keeps them until release is called; from is
// the zero value where no name is given. Errors are those of Hold.
func (s *Store) HoldTwo(from, to string) (first, second Record, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ok bool
	if second, ok = s.find(to); !ok {
		return first, second, nil, fmt.Errorf("%w: %s", engine.ErrNoSnapshot, to)
	}
	if from == "" {
		return first, second, s.hold(second.Chain()...), nil
	}
	if first, ok = s.find(from); !ok {
		return first, second, nil, fmt.Errorf("%w: %s", engine.ErrNoSnapshot, from)
	}
	if first.ImageID != second.ImageID {
		return first, second, nil, fmt.Errorf("%w: snapshot: %s is of image %s, and %s of %s",
			engine.ErrInvalid, from, first.ImageID, to, second.ImageID)
	}
	releaseFirst, releaseSecond := s.hold(first.Chain()...), s.hold(second.Chain()...)
	return first, second, func() {
		releaseFirst()
		releaseSecond()
	}, nil
}

// HoldLast is Hold for the newest copy of an upper layer; ok is false when there is none.
func (s *Store) HoldLast(source string) (last Record, release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, record := range s.byID {
		if record.Source == source && (!ok || record.Created.After(last.Created)) {
			last, ok = record, true
		}
	}
	if !ok {
		return Record{}, func() {}, false
	}
	return last, s.hold(last.TreeID()), true
}

// hold keeps snapshots. mu is held.
func (s *Store) hold(ids ...string) (release func()) {
	for _, id := range ids {
		s.holds[id]++
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range ids {
			if s.holds[id]--; s.holds[id] == 0 {
				delete(s.holds, id)
			}
		}
		s.free()
	})
}

// Trees returns the directories of snapshots, in the same order. A missing snapshot is an error.
func (s *Store) Trees(ids []string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	trees := make([]string, len(ids))
	for i, id := range ids {
		if _, ok := s.byID[id]; !ok {
			return nil, fmt.Errorf("%w: the snapshot %s that the container began with is not there", engine.ErrNoSnapshot, id)
		}
		trees[i] = s.Tree(id)
	}
	return trees, nil
}

// Tree is the directory with the tree of a snapshot.
func (s *Store) Tree(id string) string { return filepath.Join(s.path(id), treeDirectory) }

// Index is the file with the index of a snapshot's tree.
func (s *Store) Index(id string) string { return filepath.Join(s.path(id), indexFile) }

// Hashes is the file with the hashes of what a snapshot's tree has.
func (s *Store) Hashes(id string) string { return filepath.Join(s.path(id), hashesFile) }

// WeighLists reads what the lists of a snapshot take on the disk, after one was written.
func (s *Store) WeighLists(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, ok := s.byID[id]; ok {
		record.Lists = listBytes(s.path(id))
		s.byID[id] = record
	}
}

// Memory returns what a snapshot has of the processes of a container, and the directory with it. ok
// is false when there is nothing.
func (s *Store) Memory(id string) (memory Memory, directory string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if has := s.byID[id].Memory; has != nil {
		return *has, filepath.Join(s.path(id), memoryDirectory), true
	}
	return Memory{}, "", false
}

func (s *Store) path(id string) string { return filepath.Join(s.directory, id) }

// Remove removes the snapshot of the name, at once or, when something needs it, with the last that
// does. It succeeds when there is none.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	record, ok := s.find(name)
	if !ok {
		return nil
	}
	record.Removed = true
	if !s.allNeeded()[record.ID] {
		// Nothing is written: the removal makes room on a disk that is full.
		if err := s.trash.Throw(s.path(record.ID)); err != nil {
			return err
		}
		delete(s.byID, record.ID)
		s.handOn(record)
		s.free()
		return layout.SyncDirectory(s.directory)
	}
	if err := record.write(s.path(record.ID)); err != nil {
		return err
	}
	s.byID[record.ID] = record
	s.freeMemory(record)
	return nil
}

// freeMemory throws away what a removed snapshot, whose tree is needed, has of processes, unless a
// container is to be started with them, or a caller of Hold may record that. mu is held.
func (s *Store) freeMemory(record Record) {
	if record.Memory == nil || s.begins[record.ID] > 0 || slices.Contains(s.restoring(), record.ID) {
		return
	}
	record.Memory = nil
	err := record.write(s.path(record.ID))
	if err == nil {
		s.byID[record.ID] = record
		err = s.trash.Throw(filepath.Join(s.path(record.ID), memoryDirectory))
	}
	if err != nil {
		s.log.Warn().Err(err).Str("snapshot", record.Name).Msg("cannot remove the memory of a snapshot; retried at the next removal")
	}
}

// handOn counts the bytes of a snapshot whose files are thrown away for another one that may share
// them: the next one of the same upper layer, else one whose tree was merged of such ones. That is
// too much where it does not share them, but never more than it has. mu is held.
func (s *Store) handOn(thrown Record) {
	if thrown.Source == "" || thrown.Shares != "" {
		return
	}
	var next, merged Record
	for _, record := range s.byID {
		switch {
		case record.Source == thrown.Source && record.Created.After(thrown.Created):
			next = older(next, record)
		case slices.Contains(record.Sources, thrown.Source):
			merged = older(merged, record)
		}
	}
	if next.ID == "" {
		next = merged
	}
	has := next.Exclusive
	if next.Exclusive = min(has+thrown.Exclusive, max(has, next.Bytes)); next.ID == "" || next.Exclusive == has {
		return
	}
	s.byID[next.ID] = next
	if err := next.write(s.path(next.ID)); err != nil { // the disk may be full, and the removal makes room
		s.log.Warn().Err(err).Str("snapshot", next.Name).Msg("cannot record what a snapshot shares with a removed one")
	}
}

// older returns the snapshot that was made before the other one; one without an id is none.
func older(a, b Record) Record {
	if a.ID == "" || b.Created.Before(a.Created) {
		return b
	}
	return a
}

// Free throws away every snapshot that was removed and that nothing needs any more.
func (s *Store) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free()
}

// free is Free with mu held. One that cannot be thrown away is for the next call.
func (s *Store) free() {
	for more := true; more; {
		more = false
		needed := s.allNeeded()
		for id, record := range s.byID {
			if !record.Removed {
				continue
			}
			if needed[id] {
				s.freeMemory(record)
				continue
			}
			if err := s.trash.Throw(s.path(id)); err != nil {
				s.log.Warn().Err(err).Str("snapshot", record.Name).Msg("cannot remove the files of snapshot; retried at the next removal")
				continue
			}
			delete(s.byID, id)
			s.handOn(record)
			more = true // it may have been the last on another one
		}
	}
}

// allNeeded returns what containers, other snapshots and holds need. mu is held.
func (s *Store) allNeeded() map[string]bool {
	needed := make(map[string]bool, len(s.byID))
	for id := range s.holds {
		needed[id] = true
	}
	for _, id := range s.using() {
		needed[id] = true
	}
	for _, other := range s.byID {
		for _, id := range other.needs() {
			needed[id] = true
		}
	}
	return needed
}
