package keeper

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// idlePollers is how many goroutines wait for descriptors. Each has a thread.
const idlePollers = 2

// poller calls functions when descriptors can be read, in few goroutines for all: one with a buffer
// for each container would be most of the keeper's memory. A call may take for ever (see output):
// the last goroutine that waits starts another one before it calls.
type poller struct {
	epoll int

	mu      sync.Mutex
	calls   map[int]polled
	number  int32 // of the last call that was added
	waiting int   // goroutines in epoll_wait(2), or about to be
}

// polled is a call, with a number by which an event for an earlier descriptor of the same number is
// recognised.
type polled struct {
	call   func()
	number int32
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &poller{epoll: fd, calls: map[int]polled{}}, nil
}

// add calls the function once when the descriptor can be read, and once more after every rearm.
func (p *poller) add(fd int, call func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.calls[fd] = polled{call, p.number}
	err := p.control(unix.EPOLL_CTL_ADD, fd)
	if err != nil {
		delete(p.calls, fd)
	}
	return err
}

// rearm makes the next call of a descriptor possible. One that was removed is ignored; it must not
// be closed.
func (p *poller) rearm(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.control(unix.EPOLL_CTL_MOD, fd)
}

func (p *poller) control(operation, fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd), Pad: p.calls[fd].number}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epoll, operation, fd, &event))
}

// remove must be called before the descriptor is closed. A call may be in progress. A negative
// descriptor is ignored.
func (p *poller) remove(fd int) {
	if fd < 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, fd)
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// run calls until the process ends, or enough others do. An error goes to failed.
func (p *poller) run(failed chan<- error) {
	var events [1]unix.EpollEvent // what one call takes, the others do not wait for
	for p.begin() {
		n, err := unix.EpollWait(p.epoll, events[:], -1)
		call, last := p.woken(events[:max(n, 0)])
		if err != nil && !errors.Is(err, unix.EINTR) {
			failed <- os.NewSyscallError("epoll_wait", err)
			return
		}
		if call == nil {
			continue
		}
		if last {
			go p.run(failed)
		}
		call()
	}
}

// begin reports whether the goroutine is to wait.
func (p *poller) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == idlePollers {
		return false
	}
	p.waiting++
	return true
}

// woken returns the call of an event, nil when there is none, and whether no other goroutine waits.
func (p *poller) woken(events []unix.EpollEvent) (call func(), last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	for _, event := range events {
		if found := p.calls[int(event.Fd)]; found.number == event.Pad {
			call = found.call
		}
	}
	return call, p.waiting == 0
}
