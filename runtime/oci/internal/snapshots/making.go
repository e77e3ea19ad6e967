package snapshots

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/treecopy"
)

// SharedFailpoint: a snapshot that shares the tree of another one has no tree of its own any more,
// and no record.
const SharedFailpoint = "snapshot-shared"

// Making is a snapshot that is being made. The caller calls Commit or Abort.
type Making struct {
	// Tree is an empty directory, and Staging another one for what Tree is made of.
	Tree, Staging *os.File

	store *Store
	id    string
	name  string
}

// Begin begins a snapshot. When there is one of the name, Begin returns it and no Making.
func (s *Store) Begin(name string) (*Making, Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, ok := s.find(name); ok {
		return nil, s.counted(record), nil
	}
	if s.making[name] {
		return nil, Record{}, fmt.Errorf("%w: snapshot %s is being made of another container", engine.ErrExists, name)
	}
	m := &Making{store: s, id: layout.NewID(), name: name}
	if err := m.makeDirectories(); err != nil {
		return nil, Record{}, errors.Join(err, s.trash.Throw(s.path(m.id)))
	}
	s.making[name] = true
	return m, Record{}, nil
}

func (m *Making) makeDirectories() (err error) {
	directory := m.store.path(m.id)
	if err := os.Mkdir(directory, layout.DirectoryMode); err != nil {
		return err
	}
	if m.Tree, err = makeDirectory(filepath.Join(directory, treeDirectory)); err != nil {
		return err
	}
	if m.Staging, err = makeDirectory(filepath.Join(directory, stagingDirectory)); err != nil {
		_ = m.Tree.Close()
	}
	return err
}

// makeDirectory makes a directory with the mode that the root of a container has.
func makeDirectory(path string) (*os.File, error) {
	if err := os.Mkdir(path, 0o755); err != nil { //nolint:gosec // it is the root of containers
		return nil, err
	}
	if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // whatever the service's umask is
		return nil, err
	}
	return os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// MakeMemory makes the directory for what a runtime writes of the container's processes, which the
// service alone can enter.
func (m *Making) MakeMemory() (directory string, err error) {
	directory = filepath.Join(m.store.path(m.id), memoryDirectory)
	return directory, os.Mkdir(directory, layout.DirectoryMode)
}

func (m *Making) close() {
	_ = m.Tree.Close()
	_ = m.Staging.Close()
}

// Commit completes the snapshot of a tree that is complete, and returns it as List does.
func (m *Making) Commit(record Record, index treecopy.Index) (Record, error) {
	record.ID, record.Name = m.id, m.name
	directory := m.store.path(m.id)
	err := m.store.trash.Throw(filepath.Join(directory, stagingDirectory))
	if err == nil {
		err = treecopy.WriteIndex(filepath.Join(directory, indexFile), index)
	}
	if err == nil {
		// One sync of the file system in place of one for each file and directory of the tree, most
		// of which are links to what is on the disk: those syncs would be many commits of its
		// journal.
		err = os.NewSyscallError("syncfs", unix.Syncfs(int(m.Tree.Fd())))
	}
	return m.commit(record, err)
}

// commit writes the record of what is on the disk, unless that has failed.
func (m *Making) commit(record Record, err error) (Record, error) {
	if err == nil {
		err = record.write(m.store.path(m.id))
	}
	if err == nil {
		err = layout.SyncDirectory(m.store.directory) // costs nothing where a sync has done that already
	}
	if err != nil {
		m.Abort()
		return Record{}, err
	}
	m.close()
	record.Lists = listBytes(m.store.path(m.id))
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	delete(m.store.making, m.name)
	m.store.byID[m.id] = record
	return m.store.counted(record), nil
}

// CommitShared completes a snapshot that has the tree of another one, which its caller holds, and
// returns it as List does.
func (m *Making) CommitShared(record Record, of Record) (Record, error) {
	record.ID, record.Name = m.id, m.name
	record.Shares, record.Base, record.Bytes, record.Files = of.TreeID(), of.Base, of.Bytes, of.Files
	record.Exclusive = 2 * treecopy.MinBytes // the directory and the record
	directory := m.store.path(m.id)
	err := errors.Join(os.Remove(filepath.Join(directory, stagingDirectory)), os.Remove(filepath.Join(directory, treeDirectory)))
	failpoint.Hit(SharedFailpoint)
	return m.commit(record, err)
}

// Abort removes everything of the snapshot.
func (m *Making) Abort() {
	m.close()
	if err := m.store.trash.Throw(m.store.path(m.id)); err != nil {
		m.store.log.Warn().Err(err).Str("snapshot", m.name).Msg("cannot remove the files of a snapshot that was cut off; retried at service start")
	}
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	delete(m.store.making, m.name)
}
