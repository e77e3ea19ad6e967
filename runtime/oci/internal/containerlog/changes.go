package containerlog

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"
)

// pollInterval is how often a file is looked at where the kernel does not report its changes.
const pollInterval = 200 * time.Millisecond

// changes reports that files of containers were written. The host has few instances of inotify, so
// everyone who follows a log shares one. A container can use them all up, as they are counted by
// user: then files are looked at from time to time instead.
type changes struct {
	log zerolog.Logger

	mu      sync.Mutex
	watcher *fsnotify.Watcher                     // nil until it is needed and there is one
	done    chan struct{}                         // closed when the watcher has ended
	users   map[string]map[chan struct{}]struct{} // by directory
}

func newChanges(log zerolog.Logger) *changes {
	return &changes{log: log, users: map[string]map[chan struct{}]struct{}{}}
}

func (c *changes) stop() error {
	c.mu.Lock()
	watcher := c.watcher
	c.mu.Unlock()
	if watcher == nil {
		return nil
	}
	err := watcher.Close()
	<-c.done
	return err
}

// start makes the watcher. The lock is held.
func (c *changes) start() error {
	if c.watcher != nil {
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	c.watcher, c.done = watcher, make(chan struct{})
	go c.run()
	return nil
}

func (c *changes) run() {
	defer close(c.done)
	for {
		select {
		case event, open := <-c.watcher.Events:
			if !open {
				return
			}
			c.wake(filepath.Dir(event.Name))
		case err, open := <-c.watcher.Errors:
			if !open {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				c.wakeAll()
			}
		}
	}
}

// watch returns a channel that gets a token after something in the directory has changed, or has
// possibly. release ends that.
func (c *changes) watch(directory string) (changed <-chan struct{}, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.users[directory]) == 0 {
		err := c.start()
		if err == nil {
			err = c.watcher.Add(directory)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil, err
		}
		if err != nil {
			c.log.Warn().Err(err).Str("directory", directory).Msg("cannot watch a log (fs.inotify): polling it five times a second")
			changed, release = poll()
			return changed, release, nil
		}
		c.users[directory] = map[chan struct{}]struct{}{}
	}
	user := make(chan struct{}, 1)
	c.users[directory][user] = struct{}{}
	return user, sync.OnceFunc(func() { c.leave(directory, user) }), nil
}

// poll returns a channel that gets tokens, until release.
func poll() (tokens <-chan struct{}, release func()) {
	user, released := make(chan struct{}, 1), make(chan struct{})
	go func() {
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				notify(user)
			case <-released:
				return
			}
		}
	}()
	return user, sync.OnceFunc(func() { close(released) })
}

func (c *changes) leave(directory string, user chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users[directory], user)
	if len(c.users[directory]) == 0 {
		delete(c.users, directory)
		_ = c.watcher.Remove(directory) // it may be gone, and the watch with it
	}
}

func (c *changes) wake(directory string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for user := range c.users[directory] {
		notify(user)
	}
}

func (c *changes) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, users := range c.users {
		for user := range users {
			notify(user)
		}
	}
}

// notify puts a token into a channel that holds one.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
