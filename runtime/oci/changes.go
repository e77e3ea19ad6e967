package oci

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// changes reports that files of containers were written. The host has few instances of inotify, so everyone who follows a log shares one.
type changes struct {
	watcher *fsnotify.Watcher
	done    chan struct{}

	mu    sync.Mutex
	users map[string]map[chan struct{}]struct{} // by folder
}

func newChanges() (*changes, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	c := &changes{watcher: watcher, done: make(chan struct{}), users: map[string]map[chan struct{}]struct{}{}}
	go c.run()
	return c, nil
}

func (c *changes) stop() error {
	err := c.watcher.Close()
	<-c.done
	return err
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

// watch returns a channel that gets a token after something in the folder has changed. release ends that.
func (c *changes) watch(folder string) (changed <-chan struct{}, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.users[folder]) == 0 {
		if err := c.watcher.Add(folder); err != nil {
			return nil, nil, err
		}
		c.users[folder] = map[chan struct{}]struct{}{}
	}
	user := make(chan struct{}, 1)
	c.users[folder][user] = struct{}{}
	return user, sync.OnceFunc(func() { c.leave(folder, user) }), nil
}

func (c *changes) leave(folder string, user chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users[folder], user)
	if len(c.users[folder]) == 0 {
		delete(c.users, folder)
		_ = c.watcher.Remove(folder) // it may be gone, and the watch with it
	}
}

func (c *changes) wake(folder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for user := range c.users[folder] {
		nudge(user)
	}
}

func (c *changes) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, users := range c.users {
		for user := range users {
			nudge(user)
		}
	}
}

// nudge puts a token into a channel that holds one.
func nudge(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
