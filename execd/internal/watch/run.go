package watch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// locateInterval is how often the watched path is looked up again.
const locateInterval = time.Second

// run passes on what the kernel reports, until the watch is closed or has nothing more to report.
func (w *Watch) run() {
	defer close(w.stopped)
	defer w.queue.end()
	defer func() { w.watcher.Close() }()
	ticker := time.NewTicker(locateInterval)
	defer ticker.Stop()
	elsewhere := false
	for {
		var err error
		gone := false
		select {
		case <-ticker.C:
			// Only the second time in a row, so that what happened before has been passed on, the
			// root's own removal included.
			before := elsewhere
			if elsewhere = w.elsewhere(); before && elsewhere {
				w.queue.put(Event{Type: Rename, Path: w.options.Path})
				gone = true
			}
		case <-w.stop:
			return
		case event := <-w.watcher.Events:
			gone, err = w.handle(event)
		case err = <-w.failures:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				err = w.overflow()
			}
		}
		if err != nil {
			w.queue.put(Event{Type: Failed, Path: w.options.Path, Message: err.Error()})
			return
		}
		if gone {
			return
		}
	}
}

// overflow sets all watches again. The event comes after the new watches stand, so whoever reads
// the files then misses nothing.
func (w *Watch) overflow() error {
	err := w.renew()
	w.queue.put(Event{Type: Overflow, Path: w.options.Path})
	if errors.Is(err, ErrNotFound) {
		w.queue.put(Event{Type: Remove, Path: w.options.Path})
	}
	return err
}

// elsewhere reports whether the path does not lead any more to what is watched. The kernel reports
// nothing of that when a directory above the path gets another name, or a link on the way another
// target.
func (w *Watch) elsewhere() bool {
	now, err := locate(w.options.Path, w.file)
	if err != nil {
		err = classify(w.options.Path, err)
		return errors.Is(err, ErrNotFound) || errors.Is(err, ErrInvalid)
	}
	return now.target != w.at.target || !os.SameFile(now.directory, w.at.directory)
}

// handle passes an event on. It reports whether what is watched is gone.
func (w *Watch) handle(event fsnotify.Event) (gone bool, err error) {
	root, path := w.options.Path, event.Name
	left := event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)
	if w.file && path == w.at.target {
		path = root
	}
	if w.file && (path == filepath.Dir(root) || path == filepath.Dir(w.at.target)) {
		if left { // the file is not where it was
			w.queue.put(Event{Type: kind(event), Path: root})
		}
		return left, nil
	}
	if w.file && path != root {
		return false, nil
	}
	// An event that was on its way when its directory left: the directory's new name, if it has
	// one, is read from the start.
	if _, watched := w.directories[filepath.Dir(path)]; !watched && path != root {
		return false, nil
	}
	if kind := kind(event); kind != "" {
		w.queue.put(Event{Type: kind, Path: path})
	}
	switch {
	case left:
		w.forget(path)
		return path == root, nil
	case event.Has(fsnotify.Create) && w.options.Recursive && !w.file:
		return false, w.appeared(path)
	}
	return false, nil
}

// appeared watches a path that is new, if it is a directory.
func (w *Watch) appeared(path string) error {
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return nil // what is gone again has its own event
	}
	err := w.addTree(path, true)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrPermission) {
		return nil
	}
	return err
}

// forget takes the watches off a path that left and everything below it. They would report the old
// names.
func (w *Watch) forget(path string) {
	if _, watched := w.directories[path]; !watched {
		return // no directory
	}
	w.queue.part()
	for directory := range w.directories {
		if directory == path || strings.HasPrefix(directory, path+"/") {
			delete(w.directories, directory)
			w.bytes -= len(directory)
			_ = w.watcher.Remove(directory) // the kernel has done it for what was removed
		}
	}
}

func kind(event fsnotify.Event) Type {
	switch {
	case event.Has(fsnotify.Create):
		return Create
	case event.Has(fsnotify.Remove):
		return Remove
	case event.Has(fsnotify.Rename):
		return Rename
	case event.Has(fsnotify.Write):
		return Write
	case event.Has(fsnotify.Chmod):
		return Chmod
	}
	return "" // fsnotify's way to say nothing
}
