package keeper

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
)

const (
	// cancelTimeout is how long a canceled launch is waited for: what it has made is removed then.
	cancelTimeout = 15 * time.Second
	// usersTimeout bounds how long the keeper may take for a user namespace, which is milliseconds
	// unless the machine is overloaded.
	usersTimeout = 30 * time.Second
	// parallelAdoptions is how many containers are adopted at the same time.
	parallelAdoptions = 32
	// reconnectPause is between two attempts to start another keeper.
	reconnectPause = time.Second
)

// Client is the service's connection to the keeper. When the keeper ends it starts another one,
// which watches the same containers. It is safe for concurrent use.
type Client struct {
	options Options
	slots   chan struct{} // one element per launch or user namespace that the keeper works on
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	ends    chan struct{} // has an element when reports is not empty

	mu      sync.Mutex
	link    *link
	changed chan struct{} // closed when link has changed
	held    map[string]*held
	reports []report
}

// held is a container whose end is of interest. Its descriptors keep what a keeper that is killed
// would lose: the status of a process that was waited for by another one, and what a FIFO has in
// it. The FIFO comes from the keeper, which closes its own later: nothing is done with it here, and
// so nothing waits for a container that holds it (see output), as the service would when it ends.
type held struct {
	watched     Watched
	process     Process
	pidfd, fifo int  // -1 when there is none
	ended       bool // its end was reported
}

type report struct {
	id  string
	end End
}

// Open connects to the keeper of the directory, and starts the program when there is none.
func Open(ctx context.Context, o Options) (*Client, error) {
	for name, path := range map[string]string{"Program": o.Program, "Directory": o.Directory} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("keeper: %s must be an absolute path, got %q", name, path)
		}
	}
	l, err := o.connect(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	c := &Client{
		options: o, slots: make(chan struct{}, parallelLaunches), ends: make(chan struct{}, 1),
		link: l, changed: make(chan struct{}), held: map[string]*held{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.running.Go(c.reportEnds)
	c.running.Go(func() { c.follow(l) })
	return c, nil
}

func unavailable(err error) error {
	return fmt.Errorf("keeper: %w: %w", engine.ErrUnavailable, err)
}

// Close closes the connection. The keeper goes on. Exited is not called any more once Close has
// returned.
func (c *Client) Close() error {
	c.cancel()
	c.running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, h := range c.held {
		h.close()
		delete(c.held, id)
	}
	return nil
}

func (h *held) close() {
	closeApart(h.pidfd, h.fifo) // without a keeper, the last of the FIFO
	h.pidfd, h.fifo = -1, -1
}

// keep takes what is missing of a pidfd and a FIFO. Those that it takes are -1 afterwards.
func (h *held) keep(files []int) {
	for i, own := range []*int{&h.pidfd, &h.fifo} {
		if i < len(files) && *own < 0 {
			*own, files[i] = files[i], -1
		}
	}
}

// Ready returns nil when the client is connected to a keeper, for which it waits until ctx ends and
// no longer than a start of the program may take. The error wraps [engine.ErrUnavailable].
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.connectedSoon(ctx)
	return err
}

// connectedSoon is connected, for as long as a start of the program may take.
func (c *Client) connectedSoon(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("no keeper runs"))
	defer cancel()
	return c.connected(ctx)
}

// Enter moves the calling thread, which shares its root and working directory with no other, to the
// keeper's mount namespace. It returns the keeper's process id.
func (c *Client) Enter() (pid int, err error) {
	via, err := c.connectedSoon(c.ctx)
	if err != nil {
		return 0, err
	}
	if err := via.enter(); err != nil {
		return 0, unavailable(fmt.Errorf("enter its mount namespace: %w", err))
	}
	return via.pid, nil
}

// Launch starts a container and returns its first process. The error is a [*RuntimeError] when the
// container cannot be started, and wraps [engine.ErrUnavailable] when that is not known; then what
// the runtime has made may be left: processes in the CgroupDirectories, the one of PIDFile, and the
// runtime's own records.
//
// Launch of a container that this keeper has started for a client before, which was killed before
// it got the answer, returns that one.
func (c *Client) Launch(ctx context.Context, l Launch) (Process, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return Process{}, unavailable(ctx.Err())
	}
	via, err := c.connectedSoon(ctx)
	if err != nil {
		return Process{}, err
	}
	// Held before the keeper has it, so that no end is missed.
	c.mu.Lock()
	if c.held[l.ID] != nil {
		c.mu.Unlock()
		return Process{}, fmt.Errorf("keeper: %w: container %s was launched and not forgotten", engine.ErrExists, l.ID)
	}
	c.held[l.ID] = &held{watched: l.Watched, pidfd: -1, fifo: -1}
	c.mu.Unlock()
	process, err := c.launch(ctx, via, &l)
	if err != nil {
		c.release(l.ID)
	}
	return process, err
}

func (c *Client) launch(ctx context.Context, via *link, l *Launch) (Process, error) {
	number, answers, err := via.request(request{Operation: opLaunch, Launch: l})
	if err != nil {
		return Process{}, unavailable(err)
	}
	canceled := ctx.Done()
	var expired <-chan time.Time
	for {
		select {
		case a := <-answers:
			switch {
			case a.Failure != nil && ctx.Err() != nil:
				return Process{}, unavailable(ctx.Err())
			case a.Failure != nil:
				return Process{}, a.Failure
			case a.Error != "":
				return Process{}, unavailable(errors.New(a.Error))
			}
			return *a.Process, nil
		case <-via.done:
			return Process{}, unavailable(errLost)
		case <-canceled:
			canceled = nil
			expired = time.After(cancelTimeout)
			if err := via.send(request{Operation: opCancel, Number: number}); err != nil {
				return Process{}, unavailable(err)
			}
		case <-expired:
			return Process{}, unavailable(ctx.Err())
		}
	}
}

// Forget drops a container, whose end is no longer of interest. The output is not moved to the log
// any more. Forgetting a container that is not known succeeds.
func (c *Client) Forget(id string) error {
	c.release(id)
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l == nil {
		return nil // the next keeper is not asked to watch it
	}
	ctx, cancel := context.WithTimeout(c.ctx, cancelTimeout)
	defer cancel()
	if _, err := l.call(ctx, request{Operation: opForget, Container: id}); err != nil && !l.isLost() {
		return unavailable(err)
	}
	return nil
}

// release stops holding a container. Its end is not reported any more: the next one of this id
// would be taken for ended.
func (c *Client) release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = slices.DeleteFunc(c.reports, func(r report) bool { return r.id == id })
	if h := c.held[id]; h != nil {
		h.close()
		delete(c.held, id)
	}
}
