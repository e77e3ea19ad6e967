package taskexecutor

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// The files of a task's directory. Each is there completely or not at all, and never changes once
// it is there.
//
// Whether a task was ever started is decided by startedFile and the lock alone. The shim holds the
// lock from its first moment to its last, and writes startedFile before it starts anything. So
// without that file nothing was started, and a shim may be; with it, nothing is ever started again;
// and if then no process holds the lock, how the task ended is lost.
const (
	taskFile    = "task.json"    // what to run; written by the executor before it answers
	deletedFile = "deleted.json" // it was asked to end and to be forgotten; by the executor
	startedFile = "started.json" // it may have been started from now on; by the shim
	runningFile = "running.json" // its process runs; by the shim
	readyFile   = "ready.json"   // its readiness was answered; by the executor
	endFile     = "end.json"     // how it ended, and nothing of it is left; by the shim, or by the executor when the shim was killed
	lockFile    = "lock"
)

// maxRecord bounds what is read of a file: more than the largest task, of which a byte may become
// three (one that is no UTF-8).
const maxRecord = 4 * tasks.MaxBody

// hidden begins the names of directories that are no tasks any more, or not yet.
const hidden = "."

type (
	taskRecord struct {
		Name string     `json:"name"`
		Task tasks.Task `json:"task"`
	}
	startedRecord struct {
		Shim process.ID `json:"shim"`
		At   time.Time  `json:"at"`
	}
	runningRecord struct {
		Process process.ID `json:"process"`
		At      time.Time  `json:"at"`
	}
	endRecord struct {
		ExitCode *int      `json:"exitCode,omitempty"`
		Reason   string    `json:"reason,omitempty"` // empty: it succeeded
		Message  string    `json:"message,omitempty"`
		At       time.Time `json:"at"`
	}
	markRecord struct {
		At time.Time `json:"at"`
	}
)

// directory is where the records of one task are. Its name is the task's, a dot, and what
// distinguishes it from earlier tasks of that name.
type directory string

// snapshot is what a directory says.
type snapshot struct {
	started *startedRecord
	running *runningRecord
	end     *endRecord
	deleted bool
	ready   bool
}

// newDirectory makes the directory of a new task below parent. When it returns, the task survives
// everything but the loss of the disk.
func newDirectory(parent string, record taskRecord) (_ directory, err error) {
	random := make([]byte, 8)
	rand.Read(random)
	name := record.Name + "." + hex.EncodeToString(random)
	building := filepath.Join(parent, hidden+name)
	if err := os.Mkdir(building, 0o700); err != nil {
		return "", err
	}
	if err = write(building, taskFile, record); err == nil {
		f := directory(filepath.Join(parent, name))
		if err = os.Rename(building, string(f)); err == nil {
			if err = syncDirectory(parent); err == nil {
				return f, nil
			}
			// The task was not accepted: it must not run beside the next one of its name.
			return "", errors.Join(err, f.remove())
		}
	}
	return "", errors.Join(err, os.RemoveAll(building))
}

// directories returns the directories of the tasks below parent, and removes what is left of
// others.
func directories(parent string) ([]directory, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var found []directory
	for _, entry := range entries {
		path := filepath.Join(parent, entry.Name())
		if !strings.HasPrefix(entry.Name(), hidden) {
			found = append(found, directory(path))
		} else if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (f directory) base() string { return filepath.Base(string(f)) }

// name is the task's name as the directory's name has it, for when nothing else does.
func (f directory) name() string {
	name, _, _ := strings.Cut(f.base(), ".")
	return name
}

// remove forgets the task, at once even if the rest of the removal is interrupted. It may be
// repeated.
func (f directory) remove() error {
	parent := filepath.Dir(string(f))
	gone := filepath.Join(parent, hidden+f.base())
	if err := os.Rename(string(f), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(syncDirectory(parent), os.RemoveAll(gone))
}

// discard removes the directory, unless a shim has it.
func (f directory) discard() (discarded bool, err error) {
	lock, locked, err := f.lock()
	if err != nil || !locked {
		return false, err
	}
	return true, errors.Join(f.remove(), lock.Close())
}

func (f directory) task() (taskRecord, error) {
	var record taskRecord
	ok, err := read(f, taskFile, &record)
	if err == nil && !ok {
		err = fmt.Errorf("%s is missing", taskFile)
	}
	if err == nil {
		err = errors.Join(tasks.CheckName(record.Name), record.Task.Validate())
	}
	return record, err
}

func (f directory) load() (snapshot, error) {
	var s snapshot
	var errs [5]error
	s.started, errs[0] = optional[startedRecord](f, startedFile)
	s.running, errs[1] = optional[runningRecord](f, runningFile)
	s.end, errs[2] = optional[endRecord](f, endFile)
	var mark markRecord
	s.deleted, errs[3] = read(f, deletedFile, &mark)
	s.ready, errs[4] = read(f, readyFile, &mark)
	return s, errors.Join(errs[:]...)
}

func (f directory) mark(name string) error {
	return write(string(f), name, markRecord{time.Now().UTC()})
}

// lock takes the directory's lock, unless another process holds it. The kernel takes it back when
// its holder ends, however that happens.
func (f directory) lock() (file *os.File, locked bool, err error) {
	file, err = os.OpenFile(filepath.Join(string(f), lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	return tryLock(file)
}

func tryLock(file *os.File) (*os.File, bool, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return file, true, nil
	}
	file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil
	}
	return nil, false, err
}

func optional[T any](f directory, name string) (*T, error) {
	record := new(T)
	if ok, err := read(f, name, record); !ok || err != nil {
		return nil, err
	}
	return record, nil
}

// read reports whether the file is there.
func read(f directory, name string, record any) (bool, error) {
	file, err := os.Open(filepath.Join(string(f), name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxRecord))
	if err == nil {
		err = decode(data, record)
	}
	if err != nil {
		return true, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

// decode understands one JSON value, with nothing unknown in it and nothing behind it.
func decode(data []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind the JSON value")
	}
	return nil
}

// write puts a file into a directory, completely or not at all, and returns when it is on the disk.
func write(dir, name string, record any) error {
	file, err := os.CreateTemp(dir, hidden+name+"-*")
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(file)
	encoder.SetEscapeHTML(false) // else a byte could become six: see maxRecord
	err = errors.Join(encoder.Encode(record), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), os.Remove(file.Name()))
	}
	return syncDirectory(dir)
}

func syncDirectory(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
