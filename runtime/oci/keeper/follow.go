package keeper

import (
	"context"
	"errors"
	"time"
)

// follow receives from a link, and from those that follow it, until Close.
func (c *Client) follow(l *link) {
	for {
		// Close does not know a link whose containers are still being adopted.
		stop := context.AfterFunc(c.ctx, l.close)
		l.receive(c.received)
		stop()
		if c.ctx.Err() != nil {
			return
		}
		c.options.Logger.Warn().Int("pid", l.pid).Msg("keeper lost: starting another")
		c.setLink(nil)
		if l = c.reconnect(); l == nil {
			return
		}
	}
}

// reconnect returns a link to a keeper that gets the containers of this client; nil after Close.
func (c *Client) reconnect() *link {
	for {
		l, err := c.options.connect(c.ctx)
		if err == nil {
			// Adoptions wait for answers, which are received once this returns.
			c.running.Go(func() { c.adoptAll(l) })
			return l
		}
		if c.ctx.Err() != nil {
			return nil
		}
		c.options.Logger.Error().Err(err).Msg("keeper not started")
		select {
		case <-time.After(reconnectPause):
		case <-c.ctx.Done():
			return nil
		}
	}
}

// setLink sets the link in use, nil for none.
func (c *Client) setLink(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l != nil && l.isLost() {
		return // follow has seen that, or is about to
	}
	c.link = l
	close(c.changed)
	c.changed = make(chan struct{})
}

// connected returns the link, and waits for it while there is none.
func (c *Client) connected(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, changed := c.link, c.changed
		c.mu.Unlock()
		if l != nil && !l.isLost() {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, unavailable(context.Cause(ctx))
		case <-c.ctx.Done():
			return nil, unavailable(errors.New("the client is closed"))
		}
	}
}

// received takes note of a message before its request gets it.
func (c *Client) received(a *answer) {
	if a.Container == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[a.Container]
	if h == nil || h.ended {
		return
	}
	if a.Process != nil {
		h.process = *a.Process
	}
	h.keep(a.files)
	if a.End == nil {
		return
	}
	h.ended = true
	h.close() // its output is in the log, and its end in a file
	c.reports = append(c.reports, report{a.Container, *a.End})
	select {
	case c.ends <- struct{}{}:
	default:
	}
}

// reportEnds calls Exited.
func (c *Client) reportEnds() {
	for {
		select {
		case <-c.ends:
		case <-c.ctx.Done():
			return
		}
		for c.reportNext() {
		}
	}
}

func (c *Client) reportNext() bool {
	c.mu.Lock()
	if len(c.reports) == 0 || c.ctx.Err() != nil {
		c.mu.Unlock()
		return false
	}
	next := c.reports[0]
	c.reports = c.reports[1:]
	c.mu.Unlock()
	if c.options.Exited != nil {
		c.options.Exited(next.id, next.end)
	}
	return true
}
