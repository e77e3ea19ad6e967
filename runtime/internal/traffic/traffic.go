// Package traffic reports packets on their way to a container that open a connection or carry data,
// also while the container is frozen.
//
// A [Watch] is a packet(7) socket at the host's end of the container's veth pair, with a filter
// that the kernel runs. Every way to the container ends there, behind the translation of published
// ports and behind what the firewall drops. It costs a descriptor per container, and nothing while
// the container is not watched.
//
// The alternative is a rule of nftables that logs packets to netlink (NFLOG). It works, but has
// disadvantages: a firewall that is loaded again removes the rule for a moment, in which packets
// pass unseen; its group is a number that no other program of the host may use; one queue serves
// all containers, and a flood to one of them fills it; the service parses headers that others have
// written; and the kernel needs a module more.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pause is how long after a report the next one comes at the earliest. The socket holds a packet or
// two meanwhile, and drops the others without waking this process.
const pause = time.Second

// maxDrained is how many packets are read for one report.
const maxDrained = 16

// Watch is a socket that gets the packets to be reported. It holds nothing of them but that they
// came.
type Watch struct {
	file *os.File
	raw  syscall.RawConn
}

// Open watches what is sent through the interface to the address, an IPv4 one. Packets count from
// its return on. The caller calls Report, or Close.
func Open(index int, address netip.Addr) (*Watch, error) {
	if !address.Is4() {
		return nil, fmt.Errorf("watch the traffic to %v: it is not an IPv4 address", address)
	}
	// Without a protocol it gets nothing until it is bound.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	w := &Watch{file: os.NewFile(uintptr(socket), "traffic")}
	if err := w.bind(socket, index, address); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch the traffic of interface %d: %w", index, err)
	}
	return w, nil
}

func (w *Watch) bind(socket, index int, address netip.Addr) (err error) {
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return err
	}
	if err := w.file.SetReadDeadline(time.Time{}); err != nil { // without a poller it would block
		return err
	}
	// The least that there is: a packet gets in when there is any room.
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil {
		return err
	}
	if err := attach(socket, address); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	// Only sockets of all protocols get what is sent.
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	return unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
}

// closing bounds how many sockets are closed at once: the kernel waits at each until no processor
// runs its filter, some milliseconds, and each of them takes a thread of this process meanwhile.
var closing = make(chan struct{}, 16)

// Close ends a Watch that no Report serves.
func (w *Watch) Close() {
	closing <- struct{}{}
	defer func() { <-closing }()
	_ = w.file.Close()
}

// Report calls notify for packets that have come, at most once per second, until ctx ends or the
// interface is removed. Then it closes the Watch. When packets may have been missed, it calls
// notify, too.
func (w *Watch) Report(ctx context.Context, notify func()) {
	defer w.Close()
	long := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(long) })
	defer stop()
	for {
		gone := w.wait()
		if gone || ctx.Err() != nil {
			return
		}
		notify()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// wait returns once a packet has come, or may have, and reports whether the interface is gone.
func (w *Watch) wait() (gone bool) {
	var buffer [accepted]byte
	err := w.raw.Read(func(socket uintptr) bool {
		for drained := range maxDrained {
			_, _, err := unix.Recvfrom(int(socket), buffer[:], unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return drained > 0
			case err != nil: // ENETDOWN
				gone = isGone(int(socket))
				return true
			}
		}
		return true
	})
	return gone || errors.Is(err, os.ErrClosed)
}

// isGone reports whether the interface of a socket does not exist any more.
func isGone(socket int) bool {
	bound, err := unix.Getsockname(socket)
	if err != nil {
		return true
	}
	link, ok := bound.(*unix.SockaddrLinklayer)
	return !ok || link.Ifindex <= 0
}
