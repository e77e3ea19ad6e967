package command

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// poller watches the pipes and processes of all commands. One goroutine serves them: a thousand
// commands that are silent cost no goroutine at all. It must never wait for anything but events, so
// whatever may block is done elsewhere.
//
// The goroutine waits in epoll_wait and so keeps a thread.
type poller struct {
	fd      int
	wake    int // an event file descriptor that ends the wait
	stopped chan struct{}
	// noHandles is for tests: it does as if the kernel gave no descriptors of processes.
	noHandles bool

	mu        sync.Mutex
	runs      map[int32]*run
	numbers   int32
	leftovers leftovers
}

const (
	// eventBatch is how many events are taken from the kernel at once.
	eventBatch = 64
	// wakeNumber is in the place of a run's number in the event of poller.wake.
	wakeNumber = -1
)

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch commands: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeNumber})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch commands: %w", err)
	}
	p := &poller{fd: fd, wake: wake, stopped: make(chan struct{}), runs: make(map[int32]*run)}
	go p.serve()
	return p, nil
}

// add makes a run known, and gives it the number by which its events find it.
func (p *poller) add(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.runs[p.numbers] != nil {
		p.numbers++
	}
	r.number = p.numbers
	p.runs[r.number] = r
	p.numbers++
}

func (p *poller) remove(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[r.number] == r {
		delete(p.runs, r.number)
	}
}

// watch delivers the events to the run as soon as fd can be read, once. It is taken up again with
// rewatch. A descriptor that is closed is no longer watched; as each is watched for one event at a
// time, what comes late for it finds nothing to do.
func (p *poller) watch(fd int, r *run, e events) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, watched(r, e))
}

func (p *poller) rewatch(fd int, r *run, e events) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, watched(r, e))
}

func watched(r *run, e events) *unix.EpollEvent {
	return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: r.number, Pad: int32(e)}
}

func (p *poller) serve() {
	defer close(p.stopped)
	var polled [eventBatch]unix.EpollEvent
	for {
		count, err := unix.EpollWait(p.fd, polled[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the instance is ours alone and open, so it does not happen
		}
		for _, event := range polled[:max(count, 0)] {
			if event.Fd == wakeNumber {
				return
			}
			p.mu.Lock()
			r := p.runs[event.Fd]
			p.mu.Unlock()
			if r != nil {
				r.deliver(events(event.Pad), true)
			}
		}
	}
}

// close stops watching, and closes the pipes that what commands left behind still holds.
func (p *poller) close() {
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-p.stopped
	defer unix.Close(p.wake)
	defer unix.Close(p.fd) // after the last run, which watches its pipes here
	p.mu.Lock()
	p.leftovers.close()
	runs := make([]*run, 0, len(p.runs))
	for _, r := range p.runs {
		runs = append(runs, r)
	}
	p.mu.Unlock()
	for _, r := range runs {
		r.deliver(discarded, false)
	}
}
