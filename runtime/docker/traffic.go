package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/traffic"
)

var _ engine.Traffic = (*Engine)(nil)

// errElsewhere is the error of a container whose processes this one does not see.
var errElsewhere = fmt.Errorf("%w: the network of the container is not visible from here: the Docker Engine runs on another machine, or this process in a container", engine.ErrInvalid)

// WatchTraffic implements [engine.Traffic], for an engine on this machine; for others it returns
// [engine.ErrInvalid]. A container that has joined the network of another one shares its traffic:
// packets for either of them are reported. Of a frozen container, what has come before and was not
// read is reported at once; a kernel of its own does not show that, and is taken to have it. The
// watch ends with the container that the network was made for, and with the Engine. A call of
// notify that has begun may end after stop has returned.
func (e *Engine) WatchTraffic(ctx context.Context, id string, notify func()) (stop func(), err error) {
	op := "watch the traffic of container " + id
	found, err := e.inspectAlive(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	watch, err := e.openTraffic(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if found.State.Paused && e.mayHaveUnread(found) {
		notify()
	}
	watching, stop := context.WithCancel(e.closing)
	if !e.inBackground(func() { watch.Report(watching, notify) }) {
		stop()
		watch.Close()
		return nil, fmt.Errorf("%s: %w: the engine was closed", op, engine.ErrUnavailable)
	}
	return stop, nil
}

// inspectAlive returns what the engine has of a container that runs or is frozen.
func (e *Engine) inspectAlive(ctx context.Context, id string) (found container.InspectResponse, err error) {
	found, err = e.inspectNow(ctx, id)
	switch {
	case err != nil:
		return found, err
	case found.State == nil || found.HostConfig == nil || found.NetworkSettings == nil:
		return found, fmt.Errorf("%w: the engine does not describe the container", engine.ErrUnavailable)
	case !found.State.Running: // which is true for a frozen one
		return found, fmt.Errorf("%w: it is %s", engine.ErrNotRunning, found.State.Status)
	}
	return found, nil
}

// openTraffic watches the network that a container is in: its own, or that of the container which
// it has joined.
func (e *Engine) openTraffic(ctx context.Context, c container.InspectResponse) (*traffic.Watch, error) {
	if joined := c.HostConfig.NetworkMode.ConnectedContainer(); joined != "" {
		owner, err := e.inspectAlive(ctx, joined)
		if errors.Is(err, engine.ErrNotFound) {
			err = fmt.Errorf("%w: the container that it has joined is gone: %w", engine.ErrNotRunning, err)
		}
		if err != nil {
			return nil, err
		}
		c = owner
	}
	address, err := addressOf(c)
	if err != nil {
		return nil, err
	}
	index, err := hostEnd(c.State.Pid, c.ID)
	if err != nil {
		return nil, err
	}
	return traffic.Open(index, address)
}

// addressOf returns the address of a container in the network that was made for it.
func addressOf(c container.InspectResponse) (netip.Addr, error) {
	for _, network := range c.NetworkSettings.Networks {
		if network == nil || len(c.NetworkSettings.Networks) != 1 {
			break
		}
		if address, err := netip.ParseAddr(network.IPAddress); err == nil && address.Is4() {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: the container has no network of its own with one IPv4 address (%s)", engine.ErrInvalid, c.HostConfig.NetworkMode)
}

// hostEnd returns the number of the interface at this machine's end of the veth pair of a
// container, of which pid is the first process. What the container says of its own interfaces is
// checked from this end: the pair ends in the container's network.
func hostEnd(pid int, id string) (index int, err error) {
	inside, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, errElsewhere
	}
	if err != nil {
		return 0, fmt.Errorf("open the network namespace of the container: %w", err)
	}
	defer inside.Close()
	if !isOf(pid, id) { // asked after the namespace was opened: the number may be another process's
		return 0, errElsewhere
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(inside.Fd()))
	if err != nil {
		return 0, fmt.Errorf("enter the network namespace of the container: %w", err)
	}
	defer there.Close()
	links, err := there.LinkList()
	if err != nil {
		return 0, fmt.Errorf("list the interfaces of the container: %w", err)
	}
	for _, link := range links {
		outside := link.Attrs().ParentIndex
		if link.Type() != "veth" || outside == 0 || !endsIn(outside, link.Attrs().Index, int(inside.Fd())) {
			continue
		}
		if index != 0 {
			return 0, fmt.Errorf("%w: the container has more than one interface to this machine", engine.ErrInvalid)
		}
		index = outside
	}
	if index == 0 {
		return 0, errElsewhere
	}
	return index, nil
}

// endsIn reports whether an interface of this machine is the end of a veth pair whose other end has
// the number peer in the network of the descriptor.
func endsIn(index, peer, namespace int) bool {
	link, err := netlink.LinkByIndex(index)
	if err != nil || link.Type() != "veth" || link.Attrs().ParentIndex != peer {
		return false
	}
	number, err := netlink.GetNetNsIdByFd(namespace)
	return err == nil && number >= 0 && number == link.Attrs().NetNsID
}

// mayHaveUnread reports whether something may have come for a container since it was frozen.
func (e *Engine) mayHaveUnread(c container.InspectResponse) bool {
	if machine := e.machine.Load(); machine == nil || !machine.runtimes[c.HostConfig.Runtime] {
		return true
	}
	unread, err := traffic.Unread("/proc", c.State.Pid)
	return unread || err != nil
}
