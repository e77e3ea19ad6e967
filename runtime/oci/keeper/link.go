package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errLost is the error of a request that was not answered before the connection ended.
var errLost = errors.New("the connection to the keeper has ended")

// link is one connection to a keeper.
type link struct {
	socket  *socket
	version string
	pid     int
	pidfd   int // of the keeper; -1 once it is lost

	presence *os.File // a pipe that ends with the keeper, see presence; nil while it has not come

	sending sync.Mutex // so that a message that has to wait does not hold up answers

	mu      sync.Mutex
	number  uint64
	waiting map[uint64]chan<- answer
	lost    bool
	done    chan struct{} // closed when it is lost
}

// answer is a response with its descriptors.
type answer struct {
	response
	files []int
}

// dial connects, and says hello.
func (o *Options) dial(ctx context.Context) (*link, error) {
	s, err := dial(o.Directory)
	if err != nil {
		return nil, err
	}
	l := &link{socket: s, waiting: map[uint64]chan<- answer{}, done: make(chan struct{})}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(startTimeout)
	}
	// Ends that come before the answer are repeated for the containers that the client adopts.
	_ = s.file.SetDeadline(deadline) // sockets have deadlines
	if err := l.hello(); err != nil {
		l.close()
		return nil, err
	}
	_ = s.file.SetDeadline(time.Time{})
	if l.presence != nil {
		go l.awaitEnd()
	}
	return l, nil
}

// hello finds out who the keeper is.
func (l *link) hello() error {
	if err := l.socket.send(request{Operation: opHello}); err != nil {
		return err
	}
	buffer := make([]byte, messageBytes)
	for l.version == "" {
		var hello response
		files, err := l.socket.receive(buffer, &hello)
		if err != nil {
			return err
		}
		if hello.Presence && len(files) == 1 && l.presence == nil {
			l.presence = os.NewFile(uintptr(files[0]), "presence of the keeper")
		} else {
			closeApart(files...)
		}
		l.version, l.pid = hello.Version, hello.PID
	}
	var err error
	if l.pidfd, err = unix.PidfdOpen(l.pid, 0); err != nil { // ESRCH: it has ended since
		return fmt.Errorf("%w: pidfd_open: %w", unix.ECONNRESET, err)
	}
	return nil
}

// awaitEnd ends the connection, once what has come is received, when the keeper was killed: its
// socket may stay open.
func (l *link) awaitEnd() {
	var nothing [1]byte
	_, _ = l.presence.Read(nothing[:])
	_ = l.socket.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // an error is that of one that is closed
}

func (l *link) close() {
	l.socket.close()
	if l.presence != nil {
		_ = l.presence.Close()
	}
}

func (l *link) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// receive calls report for every message, in order, before its request gets it, until the
// connection ends.
func (l *link) receive(report func(*answer)) {
	buffer := make([]byte, messageBytes)
	for {
		var a answer
		var err error
		if a.files, err = l.socket.receive(buffer, &a.response); err != nil {
			break
		}
		report(&a) // takes the descriptors that it wants
		l.mu.Lock()
		waiting := l.waiting[a.Number]
		delete(l.waiting, a.Number)
		if !a.Users || waiting == nil {
			closeApart(a.files...)
			a.files = nil
		}
		if waiting != nil {
			waiting <- a // there is room: each gets one answer
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	l.lost = true
	l.closePidfd()
	l.mu.Unlock()
	close(l.done)
	l.close()
}

// closePidfd closes the descriptor of a keeper that is lost. The lock is held.
func (l *link) closePidfd() {
	closeAll(l.pidfd)
	l.pidfd = -1
}

// enter moves this thread to the keeper's mount namespace.
func (l *link) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pidfd < 0 {
		return errLost
	}
	return os.NewSyscallError("setns", unix.Setns(l.pidfd, unix.CLONE_NEWNS))
}

// request sends a request and returns the channel that gets its answer. The link may be lost
// before: see done.
func (l *link) request(r request, files ...int) (number uint64, answers <-chan answer, err error) {
	received := make(chan answer, 1)
	l.mu.Lock()
	if l.lost {
		l.mu.Unlock()
		return 0, nil, errLost
	}
	l.number++
	r.Number = l.number
	l.waiting[r.Number] = received
	l.mu.Unlock()
	if err := l.send(r, files...); err != nil {
		l.mu.Lock()
		delete(l.waiting, r.Number)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			l.lost = true // before receive sees it
		}
		l.mu.Unlock()
		return 0, nil, err
	}
	return r.Number, received, nil
}

func (l *link) send(r request, files ...int) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	return l.socket.send(r, files...)
}

// call sends a request and waits for its answer.
func (l *link) call(ctx context.Context, r request, files ...int) (answer, error) {
	_, answers, err := l.request(r, files...)
	if err != nil {
		return answer{}, err
	}
	select {
	case a := <-answers:
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-l.done:
		return answer{}, errLost
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// abandon closes what the answer to a request carries, whether it has come or not.
func (l *link) abandon(number uint64, answers <-chan answer) {
	l.mu.Lock()
	delete(l.waiting, number)
	l.mu.Unlock()
	select {
	case a := <-answers:
		closeAll(a.files...)
	default:
	}
}

// leave makes the keeper end, and returns when it has, before anything was received from the link.
func (l *link) leave(ctx context.Context) {
	defer l.close()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closePidfd()
	}()
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	if err := l.send(request{Operation: opLeave}); err != nil {
		return
	}
	buffer := make([]byte, messageBytes)
	for {
		var ignored response
		files, err := l.socket.receive(buffer, &ignored)
		closeAll(files...)
		if err != nil {
			return
		}
	}
}
