package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// attached is an attachment, with what this process holds for it.
type attached struct {
	Attachment
	namespace *namespace    // nil once started
	reserved  map[int]int   // sockets bound to the host ports, by port of the container
	held      bool          // the table does not have its ports: see Hold
	stopping  bool          // what is held waits, because the container is about to end
	gone      chan struct{} // closed when the container is detached
	takes     *attached     // what is kept for the container, until it is attached
}

func newAttached(a Attachment) *attached {
	return &attached{Attachment: a, reserved: map[int]int{}, gone: make(chan struct{})}
}

func (a *attached) close() {
	for _, socket := range a.reserved {
		_ = unix.Close(socket)
	}
	a.reserved = nil
	if a.namespace != nil {
		a.namespace.close()
		a.namespace = nil
	}
}

// giveUp is close for a container that could not be attached. The ports that are kept for it stay.
func (a *attached) giveUp() {
	if a.takes != nil {
		for port := range a.takes.Ports {
			delete(a.reserved, port)
		}
	}
	a.close()
}

// inTable is what the table has of the attachment.
func (a *attached) inTable() Attachment {
	in := a.Attachment
	if a.held {
		in.Ports = nil
	}
	return in
}

// Attach takes a namespace for the container and publishes these of its TCP ports on free ports of
// the host: on the address publish, or on all when it is the zero value. Errors wrap
// [engine.ErrNetwork].
func (n *Network) Attach(ctx context.Context, container string, ports []int,
	publish netip.Addr) (Namespace, error) {
	ns, err := n.attach(ctx, container, ports, publish)
	if err != nil {
		return Namespace{}, fmt.Errorf("%w: %w", engine.ErrNetwork, err)
	}
	return ns, nil
}

func (n *Network) attach(ctx context.Context, container string, ports []int,
	publish netip.Addr) (Namespace, error) {
	if container == "" {
		return Namespace{}, errors.New("container: empty")
	}
	if publish == netip.IPv4Unspecified() {
		publish = netip.Addr{}
	}
	if publish.IsValid() && !publish.Is4() {
		return Namespace{}, fmt.Errorf("publish: %v is not an IPv4 address", publish)
	}
	a := newAttached(Attachment{Container: container, Publish: publish})
	n.takeKept(a)
	if err := a.reserve(ports, &n.others); err != nil {
		a.giveUp()
		return Namespace{}, err
	}
	var err error
	if a.namespace, err = n.takeNamespace(ctx); err != nil {
		a.giveUp()
		return Namespace{}, err
	}
	a.Address = a.namespace.address
	out := Namespace{Attachment: a.copy(), Path: a.namespace.path(), Inode: a.namespace.inode}
	if out.Nameservers, err = n.admit(a); err != nil {
		a.giveUp()
		n.returnAddress(out.Address)
		return Namespace{}, err
	}
	return out, nil
}

// copy returns the attachment without what others hold of it.
func (a *attached) copy() Attachment {
	c := a.Attachment
	c.Ports = maps.Clone(c.Ports)
	return c
}

// maxMakers is how many namespaces are made at once. The kernel makes one at a time for the most
// part.
const maxMakers = 4

// takeNamespace returns a namespace that was made ahead, or makes one.
func (n *Network) takeNamespace(ctx context.Context) (*namespace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer n.wakeFiller()
	select {
	case ns, open := <-n.ready:
		return opened(ns, open)
	default:
	}
	select {
	case ns, open := <-n.ready:
		return opened(ns, open)
	case n.makers <- struct{}{}:
		defer func() { <-n.makers }()
		return n.makeNamespace()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func opened(ns *namespace, open bool) (*namespace, error) {
	if !open {
		return nil, errClosed
	}
	return ns, nil
}

var errClosed = errors.New("the network is closed")

// admit enters the attachment into the table and returns the name servers.
func (n *Network) admit(a *attached) ([]string, error) {
	if err := n.addresses.use(a.Address, time.Now()); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	if _, ok := n.attached[a.Container]; ok {
		return nil, fmt.Errorf("container %s is attached already", a.Container)
	}
	if n.kept[a.Container] != a.takes {
		return nil, fmt.Errorf("the ports of container %s were closed meanwhile", a.Container)
	}
	n.attached[a.Container] = a
	// What is held already is passed on as soon as a program in the container listens. Without the
	// hold it would be refused until then.
	h := n.holds[a.Container]
	a.held = h != nil && !h.released
	var err error
	if n.resolver.read() {
		err = n.rewrite()
	} else if err = n.filter.add(a.inTable()); err != nil {
		err = n.rewrite() // another program may have removed the table
	}
	if err != nil {
		delete(n.attached, a.Container)
		return nil, err
	}
	delete(n.kept, a.Container)
	a.takes = nil
	n.noteOpened()
	return slices.Clone(n.resolver.servers), nil
}

// Started drops the descriptor of the container's namespace, which the container's processes hold
// from now on.
func (n *Network) Started(container string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.attached[container]; a != nil && a.namespace != nil {
		a.namespace.close()
		a.namespace = nil
	}
}

// Detach closes the container's ports and cuts its namespace off. The kernel removes the namespace
// some time after its last process ended. Detaching a container that is not attached succeeds.
func (n *Network) Detach(container string) error {
	if err := n.DetachKeeping(container); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropKept(container)
	return nil
}

// DetachKeeping is Detach for a container that is to be attached again: it gets the same ports of
// the host, which no other process can take meanwhile. Until then, connections to them are refused
// unless they are held (see [Network.Hold]). [Network.Detach] closes the ports that are kept.
func (n *Network) DetachKeeping(container string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.attached[container]
	if a == nil {
		return nil
	}
	if n.closed {
		return fmt.Errorf("%w: detach %s: %w", engine.ErrNetwork, container, errClosed)
	}
	delete(n.attached, container)
	if err := n.filter.drop(a.inTable()); err != nil {
		if err := n.rewrite(); err != nil {
			n.attached[container] = a
			return fmt.Errorf("%w: detach %s: %w", engine.ErrNetwork, container, err)
		}
	}
	close(a.gone)
	n.noteDetached(a.Address)
	n.keepPorts(a)
	return nil
}

// keepPorts keeps the ports of a container that is detached, with the sockets that reserve them.
// The caller holds mu.
func (n *Network) keepPorts(a *attached) {
	kept := newAttached(Attachment{Container: a.Container, Publish: a.Publish, Ports: a.Ports})
	kept.reserved, a.reserved = a.reserved, nil
	a.close()
	n.kept[a.Container] = kept
	if len(kept.reserved) == 0 || len(kept.reserved) != len(kept.Ports) {
		n.dropKept(a.Container)
	}
	if h := n.holds[a.Container]; h != nil && h.released { // what it takes now would not wake the container
		h.close()
		n.endHold(h)
	}
}

// dropKept closes the ports that are kept for a container. Connections that wait for it are closed.
// The caller holds mu.
func (n *Network) dropKept(container string) {
	kept := n.kept[container]
	if kept == nil || n.closed {
		return
	}
	n.dropHold(container)
	delete(n.kept, container)
	kept.close()
	n.noteOpened()
}

// takeKept gives a container that is about to be attached the ports that it had before. They stay
// kept until it is attached.
func (n *Network) takeKept(a *attached) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.kept[a.Container]
	if kept == nil || n.closed {
		return
	}
	if kept.Publish != a.Publish {
		n.dropKept(a.Container)
		return
	}
	a.takes, a.Ports, a.reserved = kept, maps.Clone(kept.Ports), maps.Clone(kept.reserved)
}

// returnAddress gives back an address that was taken and not attached.
func (n *Network) returnAddress(address netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noteDetached(address)
}
