package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/watch"
	"sandbox.internal/openapi/serve/listen"
)

// Bounds of the watchers that clients ask for their events, which they may forget to remove.
const (
	maxWatchers   = 32
	watcherEvents = 1 << 14
	watcherBytes  = 1 << 20
	// watcherTime is how long a watcher is kept that no client asks for its events.
	watcherTime = 10 * time.Minute
)

// watchRequest is filesystem.WatchDirRequest and filesystem.CreateWatcherRequest.
type watchRequest struct {
	Path               string `json:"path"`
	Recursive          bool   `json:"recursive"`
	IncludeEntry       bool   `json:"includeEntry"`
	AllowNetworkMounts bool   `json:"allowNetworkMounts"`
}

// filesystemEvent is filesystem.FilesystemEvent.
type filesystemEvent struct {
	Name string `json:"name,omitempty"` // relative to what is watched
	Type string `json:"type,omitempty"`
}

// eventTypes are the values of filesystem.EventType.
var eventTypes = map[watch.Type]string{
	watch.Create: "EVENT_TYPE_CREATE", watch.Write: "EVENT_TYPE_WRITE", watch.Remove: "EVENT_TYPE_REMOVE",
	watch.Rename: "EVENT_TYPE_RENAME", watch.Chmod: "EVENT_TYPE_CHMOD",
}

// watchDirResponse is filesystem.WatchDirResponse.
type watchDirResponse struct {
	Start      *empty           `json:"start,omitempty"`
	Filesystem *filesystemEvent `json:"filesystem,omitempty"`
	KeepAlive  *empty           `json:"keepalive,omitempty"`
}

// converter converts the events of one watch for clients.
type converter struct {
	root string
	// placed is whether the last event was that a temporary file of execd has got another name: the
	// next one is about that.
	placed bool
}

// convert returns the events up to the first that clients have no event for, which is the error.
// Clients expect that a file is written in place. Execd writes a temporary file and renames it: the
// events of that file are left out, and its new name is one that was created and written.
func (c *converter) convert(in []watch.Event) ([]filesystemEvent, error) {
	out := make([]filesystemEvent, 0, len(in))
	for _, event := range in {
		switch event.Type {
		case watch.Overflow:
			return out, failf(codeInternal, "%s: events were lost: read the directory, and watch it again", c.root)
		case watch.Failed:
			return out, failf(codeInternal, "%s: cannot be watched any longer: %s", c.root, event.Message)
		}
		if strings.HasPrefix(filepath.Base(event.Path), files.TempPrefix) {
			c.placed = event.Type == watch.Rename
			continue
		}
		name := relative(c.root, event.Path)
		out = append(out, filesystemEvent{Name: name, Type: eventTypes[event.Type]})
		if c.placed && event.Type == watch.Create {
			out = append(out, filesystemEvent{Name: name, Type: eventTypes[watch.Write]})
		}
		c.placed = false
	}
	return out, nil
}

// watchDir sends what happens in a directory until the client's time is over. It ends when the
// directory is gone.
func (f *filesystem) watchDir(ctx context.Context, c echo.Context, in *watchRequest, out *stream) error {
	path, failed := watchable(c.Request(), in)
	if failed != nil {
		return failed
	}
	ctx, cancel, failed := untilTimeout(ctx, c.Request())
	defer cancel()
	if failed != nil {
		return failed
	}
	w, err := openWatch(path, watch.Options{Recursive: in.Recursive})
	if err != nil {
		return err
	}
	defer w.Close()
	if err := out.send(watchDirResponse{Start: &empty{}}); err != nil {
		return err
	}
	interval := keepAlive(c.Request())
	converter := converter{root: path}
	for {
		waiting, done := context.WithTimeout(ctx, interval)
		happened, err := w.Next(waiting)
		done()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			if over := (*failure)(nil); errors.As(context.Cause(ctx), &over) {
				return over
			}
			return failf(codeUnavailable, "execd is stopping")
		case err != nil: // nothing has happened
			if err := out.send(watchDirResponse{KeepAlive: &empty{}}); err != nil {
				return err
			}
			continue
		}
		events, lost := converter.convert(happened)
		for i := range events {
			if err := out.send(watchDirResponse{Filesystem: &events[i]}); err != nil {
				return err
			}
		}
		if lost != nil {
			return lost
		}
	}
}

// watchers are those whose events clients ask for.
type watchers struct {
	mu    sync.Mutex
	known map[string]*watcher
}

// watcher is a watch whose events wait for their client.
type watcher struct {
	watch   *watch.Watch
	expire  *time.Timer
	release func() // what keeps it until execd stops

	mu        sync.Mutex
	converter converter
	lost      error // every further request gets it
}

type watcherMessage struct {
	WatcherID string `json:"watcherId,omitempty"`
}

type watcherEventsMessage struct {
	Events []filesystemEvent `json:"events,omitempty"`
}

func (f *filesystem) createWatcher(c echo.Context, in *watchRequest) (*watcherMessage, error) {
	path, failed := watchable(c.Request(), in)
	if failed != nil {
		return nil, failed
	}
	opened, err := openWatch(path, watch.Options{Recursive: in.Recursive, Limit: watcherEvents, Bytes: watcherBytes})
	if err != nil {
		return nil, err
	}
	id := "w" + rand.Text()
	if !f.watchers.add(c.Request().Context(), id, &watcher{watch: opened, converter: converter{root: path}}) {
		opened.Close()
		return nil, failf(codeResourceExhausted, "%d watchers are the limit: remove one", maxWatchers)
	}
	return &watcherMessage{id}, nil
}

// add keeps a watcher until it is removed, no client has asked for its events for a while, or execd
// stops, which the context of a request knows. It reports false when there are too many.
func (w *watchers) add(ctx context.Context, id string, added *watcher) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.known) >= maxWatchers {
		return false
	}
	w.known[id] = added
	remove := func() { w.remove(id) }
	life, cancel := listen.UntilDraining(context.WithoutCancel(ctx))
	stop := context.AfterFunc(life, remove)
	added.release = func() { stop(); cancel() }
	added.expire = time.AfterFunc(watcherTime, remove)
	return true
}

// find returns a watcher, nil for none, and keeps it for another while.
func (w *watchers) find(id string) *watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.known[id]
	if found != nil {
		found.expire.Reset(watcherTime)
	}
	return found
}

// remove ends a watcher, and reports whether there was one.
func (w *watchers) remove(id string) bool {
	w.mu.Lock()
	removed := w.known[id]
	delete(w.known, id)
	w.mu.Unlock()
	if removed == nil {
		return false
	}
	removed.expire.Stop()
	removed.release()
	removed.watch.Close()
	return true
}

func (f *filesystem) getWatcherEvents(_ echo.Context, in *watcherMessage) (*watcherEventsMessage, error) {
	w := f.watchers.find(in.WatcherID)
	if w == nil {
		return nil, noWatcher(in.WatcherID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		return nil, w.lost
	}
	happened, err := w.watch.Take()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	events, lost := w.converter.convert(happened)
	w.lost = lost
	if len(events) == 0 && lost != nil {
		return nil, lost
	}
	return &watcherEventsMessage{events}, nil
}

func (f *filesystem) removeWatcher(_ echo.Context, in *watcherMessage) (*empty, error) {
	if !f.watchers.remove(in.WatcherID) {
		return nil, noWatcher(in.WatcherID)
	}
	return &empty{}, nil
}

func noWatcher(id string) *failure { return failf(codeNotFound, "watcher %.64q: there is none", id) }
