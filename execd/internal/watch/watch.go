// Package watch is execd's engine that reports what happens to a file or a directory.
//
// It uses no HTTP. It guarantees: what happens after Open has returned is reported, in order, at
// least once; what a directory holds that has just appeared is reported too, although it could not
// be watched yet; when more happens than can be kept, an Overflow event says so, and nothing is
// lost silently.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Sentinels that this package's errors wrap; the messages name the path.
var (
	ErrNotFound   = errors.New("no such file or directory")
	ErrPermission = errors.New("permission denied")
	ErrInvalid    = errors.New("no path that can be followed")
	// ErrLimit: the kernel allows no more watches, or watchers, or the paths of the directories
	// take more than maxDirectories.
	ErrLimit = errors.New("the kernel allows no more watches")
)

// maxDirectories bounds the paths of the directories that one watch watches, in bytes.
const maxDirectories = 16 << 20

// errDirectories is the ErrLimit of a tree that is too large.
type errDirectories struct{}

func (errDirectories) Error() string {
	return fmt.Sprintf("the paths of its directories take more than %d bytes: watch a part of it", maxDirectories)
}

func (errDirectories) Is(target error) bool { return target == ErrLimit }

// Type is what an event reports.
type Type string

// The types of events.
const (
	Create   Type = "create"   // the path appeared, also by being moved to where it is
	Write    Type = "write"    // the content changed
	Remove   Type = "remove"   // the path is gone
	Rename   Type = "rename"   // the path has another name now
	Chmod    Type = "chmod"    // mode, owner or another attribute changed
	Overflow Type = "overflow" // events were lost: the reader has to read the files again
	Failed   Type = "error"    // the watch cannot go on; the last event
)

// Event is one thing that happened.
type Event struct {
	Type    Type
	Path    string // absolute
	Message string // why a watch Failed
	Time    time.Time
}

// collectTime is how long events are collected before they are reported, so that a burst of equal
// ones becomes one.
const collectTime = 20 * time.Millisecond

// Options configures a Watch.
type Options struct {
	// Path is what is watched, absolute and clean.
	Path string
	// Recursive is whether everything below a directory is watched. Symbolic links are not
	// followed.
	Recursive bool
	// Limit is how many events are kept for a reader that does not come; 0 means 65536.
	Limit int
	// Bytes is how many bytes the paths of those events may take; 0 means 8 MiB.
	Bytes int
	Clock func() time.Time
}

// Watch reports what happens to a path. It is to be closed.
type Watch struct {
	options     Options
	watcher     *fsnotify.Watcher
	file        bool                // the path is no directory
	at          location            // when the watch was opened
	directories map[string]struct{} // that are watched; run alone uses it
	bytes       int                 // of their paths
	failures    chan error          // what went wrong with the watcher
	stop        chan struct{}
	stopped     chan struct{}
	queue       *queue
}

// Open begins to watch. It returns ErrNotFound, ErrPermission, ErrInvalid and ErrLimit.
func Open(options Options) (*Watch, error) {
	if options.Limit == 0 {
		options.Limit = 1 << 16
	}
	info, err := os.Stat(options.Path)
	if err != nil {
		return nil, classify(options.Path, err)
	}
	// Before the watch is set: what takes its place in between is noticed by run.
	at, err := locate(options.Path, !info.IsDir())
	if err != nil {
		return nil, classify(options.Path, err)
	}
	w := &Watch{
		options:  options,
		file:     !info.IsDir(),
		at:       at,
		failures: make(chan error, 1),
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
		queue:    newQueue(options),
	}
	if err := w.renew(); err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

// location is where a path leads to.
type location struct {
	directory os.FileInfo // the directory itself, or the directory that a file's name is in
	target    string      // of a file: the path, or what it leads to as a link
}

func locate(path string, file bool) (location, error) {
	if !file {
		directory, err := os.Stat(path)
		return location{directory: directory}, err
	}
	directory, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return location{}, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return location{}, err
	}
	other, err := os.Stat(filepath.Dir(target))
	if err != nil {
		return location{}, err
	}
	if os.SameFile(directory, other) { // the kernel reports one directory under one name
		target = filepath.Join(filepath.Dir(path), filepath.Base(target))
	}
	return location{directory, target}, nil
}

// Close ends the watch.
func (w *Watch) Close() {
	close(w.stop)
	<-w.stopped
}

// Next returns the next events and waits for them. It returns io.EOF after the last: what was
// watched is gone, or the watch Failed.
func (w *Watch) Next(ctx context.Context) ([]Event, error) {
	for {
		var more bool
		select {
		case _, more = <-w.queue.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if more {
			timer := time.NewTimer(collectTime)
			select {
			case <-timer.C:
			case <-ctx.Done(): // what there is must be taken now: the token is gone
				timer.Stop()
			}
		}
		events := w.queue.take()
		switch {
		case len(events) > 0:
			return events, nil
		case !more:
			return nil, io.EOF
		}
	}
}

// Take returns the events that are at hand, and does not wait. It returns io.EOF after the last, as
// Next does; the two must not be called concurrently.
func (w *Watch) Take() ([]Event, error) {
	more := true
	select {
	case _, more = <-w.queue.ready:
	default:
	}
	events := w.queue.take()
	if len(events) == 0 && !more {
		return nil, io.EOF
	}
	return events, nil
}

// renew watches with a new watcher, without the events of the last one.
func (w *Watch) renew() error {
	watcher, err := fsnotify.NewWatcher()
	if errors.Is(err, syscall.EMFILE) {
		return fmt.Errorf("%s: %w: too many watchers (fs.inotify.max_user_instances) or open files", w.options.Path, ErrLimit)
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.options.Path, err)
	}
	if w.watcher != nil {
		w.watcher.Close()
	}
	w.watcher, w.directories, w.bytes = watcher, make(map[string]struct{}), 0
	go w.forward(watcher)
	// A file is watched by its directory, so that the watch survives when the file is replaced by
	// another. So is what a link leads to, by its own directory.
	if root := w.options.Path; w.file {
		err = w.add(filepath.Dir(root))
		if directory := filepath.Dir(w.at.target); err == nil && directory != filepath.Dir(root) {
			err = w.add(directory)
		}
	} else {
		err = w.addTree(root, false)
	}
	if err != nil {
		watcher.Close()
	}
	return err
}

// forward passes on the errors of a watcher until it is closed. It never blocks: fsnotify may hold
// its lock while it sends an error, and run waits for that lock.
func (w *Watch) forward(watcher *fsnotify.Watcher) {
	for err := range watcher.Errors {
		if errors.Is(err, syscall.EINVAL) {
			continue // a directory was removed in the moment in which it was no longer to be watched
		}
		select {
		case w.failures <- err:
		default: // one is enough to set the watches again, or to end
		}
	}
}

func (w *Watch) add(directory string) error {
	if _, watched := w.directories[directory]; !watched && w.bytes+len(directory) > maxDirectories {
		return fmt.Errorf("%s: %w", w.options.Path, errDirectories{})
	}
	if err := w.watcher.Add(directory); err != nil {
		return classify(directory, err)
	}
	if _, watched := w.directories[directory]; !watched {
		w.directories[directory] = struct{}{}
		w.bytes += len(directory)
	}
	return nil
}

// addTree watches a directory and, if asked for, what is below. Each directory is read after its
// watch stands, so nothing slips in between. announce is whether what is found is reported.
func (w *Watch) addTree(directory string, announce bool) error {
	if err := w.add(directory); err != nil {
		return err
	}
	if !w.options.Recursive {
		return nil
	}
	below, err := w.readDirectory(directory, announce)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return classify(directory, err)
	}
	for _, name := range below {
		path := filepath.Join(directory, name)
		// What is gone again was reported by its parent; what we may not read reports nothing.
		err := w.addTree(path, announce)
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrPermission) {
			return err
		}
	}
	return nil
}

// readDirectory returns the names of the directories in a directory, and reports what else it finds
// if asked to. There may be more than fit into memory.
func (w *Watch) readDirectory(directory string, announce bool) (below []string, err error) {
	// It may have been replaced, by a FIFO for example, whose open blocks.
	dir, err := os.OpenFile(directory, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for room := maxDirectories; ; {
		entries, err := dir.ReadDir(256)
		for _, entry := range entries {
			if announce {
				w.queue.put(Event{Type: Create, Path: filepath.Join(directory, entry.Name())})
			}
			if !entry.IsDir() {
				continue
			}
			if room -= len(directory) + len(entry.Name()); room < 0 { // they could not all be watched
				return below, fmt.Errorf("%s: %w", w.options.Path, errDirectories{})
			}
			below = append(below, entry.Name())
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return below, err
		}
	}
}

func classify(path string, err error) error {
	switch {
	case errors.Is(err, ErrLimit):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s: %w", path, ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w", path, ErrPermission)
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG):
		return fmt.Errorf("%s: %w: %w", path, ErrInvalid, err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: %w (fs.inotify.max_user_watches)", path, ErrLimit)
	}
	return fmt.Errorf("watch %s: %w", path, err)
}
