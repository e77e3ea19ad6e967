package keeper

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// poller calls functions when descriptors can be read, in one goroutine for all: a goroutine with a buffer for each container would be most of
// the keeper's memory.
type poller struct {
	epoll int
	mu    sync.Mutex
	calls map[int]func()
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &poller{epoll: fd, calls: map[int]func(){}}, nil
}

// add calls the function, again and again, while the descriptor can be read. A call may come for a descriptor that was closed and whose
// number is another's now: it must do no harm. A negative descriptor is ignored.
func (p *poller) add(fd int, call func()) {
	if fd < 0 {
		return
	}
	p.mu.Lock()
	p.calls[fd] = call
	p.mu.Unlock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// remove must be called before the descriptor is closed.
func (p *poller) remove(fd int) {
	if fd < 0 {
		return
	}
	p.mu.Lock()
	delete(p.calls, fd)
	p.mu.Unlock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// run calls until the process ends.
func (p *poller) run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, event := range events[:n] {
			p.mu.Lock()
			call := p.calls[int(event.Fd)]
			p.mu.Unlock()
			if call != nil {
				call()
			}
		}
	}
}
