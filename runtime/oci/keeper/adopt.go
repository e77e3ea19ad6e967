package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// adoptAll makes a keeper watch what the one before has watched, and then the link that of this
// client.
func (c *Client) adoptAll(l *link) {
	c.mu.Lock()
	var ids []string
	for id, h := range c.held {
		if !h.ended && h.process.PID != 0 {
			ids = append(ids, id)
		}
	}
	c.mu.Unlock()
	for id, err := range adoptSeveral(ids, func(id string) error { return c.adopt(c.ctx, l, id) }) {
		if l.isLost() || c.ctx.Err() != nil {
			return
		}
		c.options.Logger.Error().Err(err).Str("container_id", id).Msg("container not watched")
	}
	c.setLink(l)
	c.mu.Lock() // those that were forgotten meanwhile
	var forgotten []string
	for _, id := range ids {
		if c.held[id] == nil {
			forgotten = append(forgotten, id)
		}
	}
	c.mu.Unlock()
	for _, id := range forgotten {
		_, _ = l.call(c.ctx, request{Operation: opForget, Container: id}) // it was forgotten here already
	}
}

// adoptSeveral calls adopt for every container, for several at the same time: the keeper waits for
// each that holds its output. It returns the errors.
func adoptSeveral(ids []string, adopt func(id string) error) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	var group sync.WaitGroup
	turns := make(chan struct{}, parallelAdoptions)
	for _, id := range ids {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			if err := adopt(id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[id] = err
			}
		})
	}
	group.Wait()
	return failed
}

// adopt makes the keeper of a link watch a container that is held.
func (c *Client) adopt(ctx context.Context, l *link, id string) error {
	c.mu.Lock()
	h := c.held[id]
	if h == nil {
		c.mu.Unlock()
		return nil
	}
	r := request{Operation: opAdopt, Launch: &Launch{Watched: h.watched}, Process: &h.process}
	// Duplicates: the container may be forgotten while they are sent.
	var files []int
	switch {
	case h.pidfd >= 0 && h.fifo >= 0:
		files = duplicate(h.pidfd, h.fifo)
	case h.pidfd >= 0:
		files = duplicate(h.pidfd)
	}
	c.mu.Unlock()
	defer closeApart(files...)
	_, err := l.call(ctx, r, files...)
	return err
}

// duplicate returns descriptors of the same open files, or none when there cannot be more.
func duplicate(files ...int) (copies []int) {
	for _, fd := range files {
		next, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeApart(copies...)
			return nil
		}
		copies = append(copies, next)
	}
	return copies
}

// Adopt makes the keeper watch containers that run: after another keeper was killed, or replaced.
// The service calls it after Open with every container that it has a record of a process for; those
// that the keeper watches already are left alone. Exited is called for those that have ended.
func (c *Client) Adopt(ctx context.Context, running []Running) error {
	var ids []string
	c.mu.Lock()
	for _, r := range running {
		ids = append(ids, r.ID)
		if c.held[r.ID] != nil {
			continue
		}
		h := &held{watched: r.Watched, process: r.Process, pidfd: -1, fifo: -1}
		if pidfd, err := h.process.Open(); err == nil { // before the keeper looks: the process may be about to end
			h.pidfd = pidfd
		}
		c.held[r.ID] = h
	}
	c.mu.Unlock()
	var failed error
	for id, err := range adoptSeveral(ids, func(id string) error { return c.adoptOne(ctx, id) }) {
		failed = errors.Join(failed, fmt.Errorf("container %s: %w", id, err))
	}
	if failed != nil {
		return unavailable(failed)
	}
	return nil
}

// adoptOne makes the keeper watch a container that is held, and another keeper when that one ends
// meanwhile.
func (c *Client) adoptOne(ctx context.Context, id string) error {
	for {
		via, err := c.connected(ctx)
		if err != nil {
			return err
		}
		if err = c.adopt(ctx, via, id); err == nil || !via.isLost() {
			return err
		}
	}
}
