package keeper

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// cancelTimeout is how long a canceled launch is waited for: what it has made is removed then.
	cancelTimeout = 15 * time.Second
	// usersTimeout bounds how long the keeper may take for a user namespace, which is milliseconds unless the machine is overloaded.
	usersTimeout = 30 * time.Second
	// parallelAdoptions is how many containers are adopted at the same time.
	parallelAdoptions = 32
	// reconnectPause is between two attempts to start another keeper.
	reconnectPause = time.Second
)

// Client is the service's connection to the keeper. When the keeper ends it starts another one, which watches the same containers.
// Its methods may be called from several goroutines at once.
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

// held is a container whose end is of interest. Its descriptors keep what a keeper that is killed would lose: the status of a process that
// was waited for by another one, and what a FIFO has in it. The FIFO comes from the keeper, which closes its own later: nothing is done with it
// here, and so nothing waits for a container that holds it (see output), as the service would when it ends.
type held struct {
	launch      Launch
	process     Process
	pidfd, fifo int  // -1 when there is none
	ended       bool // its end was reported
}

type report struct {
	id  string
	end End
}

// Open connects to the keeper of the folder, and starts the program when there is none.
func Open(ctx context.Context, o Options) (*Client, error) {
	for name, path := range map[string]string{"Program": o.Program, "Folder": o.Folder} {
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

// Close closes the connection. The keeper goes on. Exited is not called any more once Close has returned.
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

// adoptAll makes a keeper watch what the one before has watched, and then the link that of this client.
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
		c.options.Logger.Error().Err(err).Str("container", id).Msg("container not watched")
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

// adoptSeveral calls adopt for every container, for several at the same time: the keeper waits for each that holds its output. It returns the
// errors.
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
	r := request{Operation: opAdopt, Launch: &h.launch, Process: &h.process}
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
			return nil, unavailable(ctx.Err())
		case <-c.ctx.Done():
			return nil, unavailable(errors.New("the client is closed"))
		}
	}
}

// Enter moves the calling thread, which shares its root and working folder with no other, to the keeper's mount namespace. It returns the
// keeper's process id.
func (c *Client) Enter() (pid int, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
	defer cancel()
	via, err := c.connected(ctx)
	if err != nil {
		return 0, err
	}
	if err := via.enter(); err != nil {
		return 0, unavailable(fmt.Errorf("enter its mount namespace: %w", err))
	}
	return via.pid, nil
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

// Launch starts a container and returns its first process. The error is a [*RuntimeError] when the container cannot be started, and wraps
// [engine.ErrUnavailable] when that is not known; then what the runtime has made may be left: processes in the folders of Enter, the
// one of PIDFile, and the runtime's own records.
//
// Launch of a container that this keeper has started for a client before, which was killed before it got the answer, returns that one.
func (c *Client) Launch(ctx context.Context, l Launch) (Process, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return Process{}, unavailable(ctx.Err())
	}
	via, err := c.connected(ctx)
	if err != nil {
		return Process{}, err
	}
	// Held before the keeper has it, so that no end is missed.
	c.mu.Lock()
	if c.held[l.ID] != nil {
		c.mu.Unlock()
		return Process{}, fmt.Errorf("keeper: %w: container %s was launched and not forgotten", engine.ErrExists, l.ID)
	}
	c.held[l.ID] = &held{launch: l.record(), pidfd: -1, fifo: -1}
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

// record returns what is needed to watch the container.
func (l *Launch) record() Launch {
	return Launch{ID: l.ID, Output: l.Output, Log: l.Log, LogBytes: l.LogBytes, ExitFile: l.ExitFile, EndFile: l.EndFile}
}

// Adopt makes the keeper watch containers that run: after another keeper was killed, or replaced. The service calls it after Open with every
// container that it has a record of a process for; those that the keeper watches already are left alone. Exited is called for those that have
// ended. processes has the process of each.
func (c *Client) Adopt(ctx context.Context, running []Launch, processes []Process) error {
	if len(running) != len(processes) {
		return fmt.Errorf("keeper: %d containers with %d processes", len(running), len(processes))
	}
	var ids []string
	c.mu.Lock()
	for i := range running {
		ids = append(ids, running[i].ID)
		if c.held[running[i].ID] != nil {
			continue
		}
		h := &held{launch: running[i].record(), process: processes[i], pidfd: -1, fifo: -1}
		if pidfd, err := h.process.Open(); err == nil { // before the keeper looks: the process may be about to end
			h.pidfd = pidfd
		}
		c.held[h.launch.ID] = h
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

// adoptOne makes the keeper watch a container that is held, and another keeper when that one ends meanwhile.
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

// Forget drops a container, whose end is no longer of interest. Its output is not moved to the log any more. One that is not known is no
// error.
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

// release stops holding a container. Its end is not reported any more: the next one of this id would be taken for ended.
func (c *Client) release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = slices.DeleteFunc(c.reports, func(r report) bool { return r.id == id })
	if h := c.held[id]; h != nil {
		h.close()
		delete(c.held, id)
	}
}
