// Package store keeps records of sandboxes and snapshots, events, ends of logs and idempotency keys
// in one SQLite file, so that nothing accepted is lost to a crash.
//
// A change that a method reports as done survives kill -9 and, unless [Store.SaveUnsynced] or
// [Store.SaveSnapshotUnsynced] has written it, a loss of power: the database runs with a
// write-ahead log and syncs it at every commit. A single goroutine writes; all writes requested
// during a commit share the next one, so a single client pays one sync per operation and a hundred
// concurrent ones pay little more between them. Reads go past the writer. [Store.Events] returns
// nothing that a loss of power could take back.
//
// An operation that returns an error has no effect, with one exception that no database can avoid:
// when the disk fails during the commit itself, a crash right after may find the change done.
//
// # When the database is damaged
//
// No record is dropped silently. Open and Load return an error that names the file, and the record
// if it is only one, and the service does not start. The ways out, best first: restore the
// directory from a backup; delete the one damaged row with the sqlite3 shell, as the error says;
// move the database with its -wal and -shm files aside and start with an empty one.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // registers the driver that openDatabase names
)

const (
	databaseName = "sandbox.db"
	walSuffix    = "-wal"
	lockName     = "lock"
	maxReaders   = 4
)

// Store is the durable memory of one service. Methods may be called concurrently.
//
// A method whose context ends before its turn returns the context's error and changes nothing.
// After Close every method fails.
type Store struct {
	path    string // of the database file
	log     zerolog.Logger
	lock    *os.File
	writeDB *sql.DB
	readDB  *sql.DB
	wal     *os.File // SQLite's own log: what a sync has to reach
	findKey *sql.Stmt
	writer  *writer

	closeOnce sync.Once
	closeErr  error
}

// Open opens the store in the directory dir and creates both if need be, readable by the owner
// only: a record holds the sandbox's token. It fails when another process has the directory open,
// when a newer release wrote the database, and when the database is damaged.
func Open(dir string, log zerolog.Logger) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: create directory: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{path: filepath.Join(dir, databaseName),
		log: log.With().Str("component", "store").Logger(), lock: lock}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (s *Store) open() error {
	// SQLite would create the file with the process's umask; its -wal and -shm files inherit this
	// mode.
	file, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	ctx := context.Background()
	// A container may have no directory for the temporary files that SQLite would make of what it
	// needs to undo a statement.
	if s.writeDB, err = openDatabase(s.path, "journal_mode(wal)", "synchronous(full)",
		"busy_timeout(5000)", "temp_store(memory)"); err != nil {
		return err
	}
	conn, err := s.writeDB.Conn(ctx)
	if err != nil {
		return s.damaged("open", err)
	}
	if err := s.prepare(ctx, conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	return nil
}

// prepare checks the database, brings it to the newest schema and starts the writer, which owns
// conn from then on.
func (s *Store) prepare(ctx context.Context, conn *sql.Conn) error {
	if err := s.check(ctx, conn); err != nil {
		return err
	}
	if err := s.migrate(ctx, conn); err != nil {
		return err
	}
	// SQLite syncs its files but not the names of all of them, nor the directory's own.
	dir := filepath.Dir(s.path)
	for _, name := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(name); err != nil {
			return fmt.Errorf("store: %w", err)
		}
	}
	var err error
	if s.readDB, err = openDatabase(s.path, "query_only(1)", "busy_timeout(5000)", "temp_store(memory)"); err != nil {
		return err
	}
	s.readDB.SetMaxOpenConns(maxReaders)
	s.readDB.SetMaxIdleConns(maxReaders)
	if s.findKey, err = s.readDB.PrepareContext(ctx, findKeySQL); err != nil {
		return s.damaged("open", err)
	}
	// It exists as long as a connection is open.
	if s.wal, err = os.Open(s.path + walSuffix); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if s.writer, err = startWriter(ctx, conn, s.wal, s.log); err != nil {
		return s.damaged("open", err)
	}
	return nil
}

// Close waits for the commit that runs, refuses everything that waits behind it, and unlocks the
// directory. A second call does nothing.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.release() })
	return s.closeErr
}

// release gives back what there is, last taken first; it also ends an Open that failed half-way.
func (s *Store) release() error {
	var errs []error
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	if s.findKey != nil {
		errs = append(errs, s.findKey.Close())
	}
	if s.readDB != nil {
		errs = append(errs, s.readDB.Close())
	}
	if s.wal != nil {
		errs = append(errs, s.wal.Close())
	}
	if s.writeDB != nil {
		errs = append(errs, s.writeDB.Close())
	}
	errs = append(errs, s.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("store: close: %w", err)
	}
	return nil
}

// fullBelow is the room in the directory, in bytes, below which an error is one of a full disk.
const fullBelow = 1 << 20

// damaged explains an error that a sound database does not give while there is room.
func (s *Store) damaged(action string, err error) error {
	directory := filepath.Dir(s.path)
	var room unix.Statfs_t
	if statErr := unix.Statfs(directory, &room); statErr == nil && room.Bavail*uint64(room.Bsize) < fullBelow {
		return fmt.Errorf("store: %s %s: %w; the disk of %s is full: make room there, the file itself is not damaged", action, s.path, err, directory)
	}
	return fmt.Errorf(
		"store: %s %s: %w; if the file is damaged, restore it from a backup, or move it with its -wal and -shm files aside to start with an empty store", action, s.path, err)
}

func openDatabase(path string, pragmas ...string) (*sql.DB, error) {
	name := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{"_pragma": pragmas}.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("store: open %s: %w", path, err)
	}
	return db, nil
}
