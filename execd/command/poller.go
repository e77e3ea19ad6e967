package command

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller watches the pipes and processes of all commands. One goroutine serves them: a thousand commands that are silent cost no
// goroutine at all. It must never wait for anything but news, so whatever may block is done elsewhere.
//
// The epoll instance is itself watched by Go's own poller. So waiting holds no thread, and closing the file ends it.
type poller struct {
	file    *os.File
	fd      int
	stopped chan struct{}
	// noHandles is for tests: it does as if the kernel gave no descriptors of processes.
	noHandles bool

	mu        sync.Mutex
	runs      map[int32]*run
	numbers   int32
	leftovers leftovers
}

// eventBatch is how many events are taken from the kernel at once.
const eventBatch = 64

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch commands: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or Go's poller would not take it
		unix.Close(fd)
		return nil, fmt.Errorf("watch commands: %w", err)
	}
	p := &poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd, stopped: make(chan struct{}), runs: make(map[int32]*run)}
	connection, err := p.file.SyscallConn()
	if err != nil {
		p.file.Close()
		return nil, fmt.Errorf("watch commands: %w", err)
	}
	go p.serve(connection)
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

// watch delivers the news to the run as soon as fd can be read, once. It is taken up again with rewatch. A descriptor that is closed
// is no longer watched; as each is watched for one event at a time, what comes late for it finds nothing to do.
func (p *poller) watch(fd int, r *run, n news) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, watched(r, n))
}

func (p *poller) rewatch(fd int, r *run, n news) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, watched(r, n))
}

func watched(r *run, n news) *unix.EpollEvent {
	return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: r.number, Pad: int32(n)}
}

func (p *poller) serve(connection syscall.RawConn) {
	defer close(p.stopped)
	var events [eventBatch]unix.EpollEvent
	for {
		count, err := 0, error(nil)
		closed := connection.Read(func(fd uintptr) bool {
			count, err = unix.EpollWait(int(fd), events[:], 0)
			return count != 0 && !errors.Is(err, unix.EINTR)
		})
		if closed != nil {
			return
		}
		for _, event := range events[:max(count, 0)] {
			p.mu.Lock()
			r := p.runs[event.Fd]
			p.mu.Unlock()
			if r != nil {
				r.deliver(news(event.Pad), true)
			}
		}
	}
}

// close stops watching, and lets go of the pipes that what commands left behind still holds.
func (p *poller) close() {
	p.file.Close() // wakes the goroutine; an epoll instance has nothing to lose
	<-p.stopped
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
