package keeper

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

// greetingBytes is more than a greeting takes.
const greetingBytes = 256

// presence holds what identifies the running keeper: the lock of its directory, the socket that
// listens there, and a pipe of which every client gets the reading end.
//
// The kernel closes the descriptors of a killed process when its last thread has ended. A thread
// that waits for a FIFO whose kernel lock a container holds (see output) does not end. So a hostile
// container could keep a killed keeper's lock and socket open, and no other keeper could begin. The
// descriptors of a presence are therefore in a table of their own, which belongs to a thread that
// opens no FIFO: that thread always ends, and its descriptors are closed then.
type presence struct {
	listener    int
	connections int // a socket to the rest of the process, which gets the connections of clients
	greeting    []byte
	pipe        [2]int
}

// show makes this process the keeper of the directory. Every message of the socket carries the
// connection of a client. The error is errBusy when another process is the keeper. The thread of
// the presence closes its copy of the descriptor unneeded; -1 stands for none.
func show(directory string, unneeded int) (*socket, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, os.NewSyscallError("fcntl", err)
	}
	// newSocket makes the descriptors of Go's own poller: the thread must have copies of them, with
	// the same numbers, to be scheduled.
	brought, err := newSocket(pair[0])
	if err != nil {
		return nil, err
	}
	shown := make(chan error)
	go thread.Run(func() {
		p, err := newPresence(directory, pair[1], pair[0], unneeded)
		shown <- err
		if err == nil {
			p.serve()
		}
	})
	if err := <-shown; err != nil {
		brought.close()
		return nil, err
	}
	return brought, nil
}

// newPresence gives this thread a table of descriptors of its own, and makes the presence in it.
func newPresence(directory string, connections int, unneeded ...int) (p *presence, err error) {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	closeAll(unneeded...)
	p = &presence{connections: connections}
	if p.listener, err = listen(directory); err != nil {
		return nil, err
	}
	if err := unix.Pipe2(p.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	p.greeting, err = json.Marshal(response{Presence: true})
	return p, err
}

// serve accepts and greets clients until the rest of the process has ended.
func (p *presence) serve() {
	for {
		// A blocking accept(2) would reserve the number of the descriptor before it waits, and pass
		// a limit that is set meanwhile.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}}, -1)
		fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		case err != nil: // no descriptors or memory: the client waits, and the next call fails like this one
			thread.Sleep(acceptPause)
		default:
			ended := p.greet(fd)
			unix.Close(fd)
			if ended {
				return
			}
		}
	}
}

// greet passes a connection of the same user to the rest of the process, and reports whether that
// has ended.
func (p *presence) greet(fd int) (ended bool) {
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(credentials.Uid) != os.Geteuid() {
		return false
	}
	if unix.Sendmsg(fd, p.greeting, unix.UnixRights(p.pipe[0]), nil, unix.MSG_NOSIGNAL) != nil {
		return false
	}
	for {
		err = unix.Sendmsg(p.connections, p.greeting, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return errors.Is(err, unix.EPIPE)
		}
	}
}

// listen locks the directory for this process, and returns the socket that listens there. The error
// is errBusy when another process has the lock.
func listen(directory string) (int, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return -1, err
	}
	path := filepath.Join(directory, lockName)
	// Held as long as the process lives.
	lock, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	err = unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return -1, errBusy
	}
	if err != nil {
		return -1, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	socketPath := filepath.Join(directory, socketName)
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	fd, err := openSocket()
	if err != nil {
		return -1, err
	}
	err = socketAddress(directory, func(address unix.Sockaddr) error {
		return os.NewSyscallError("bind", unix.Bind(fd, address))
	})
	if err == nil {
		err = os.Chmod(socketPath, 0o600)
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, 64))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
