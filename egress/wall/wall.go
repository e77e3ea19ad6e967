// Package wall is the packet filter around a sandbox: nftables in the network namespace that the
// sidecar owns and the sandbox shares.
//
// There are two tables. The wall stays when the process exits; it refuses everything that does not
// carry the gate's mark, but for the loopback. The gate puts that mark on packets. It belongs to a
// netlink socket of this process (NFT_TABLE_F_OWNER), so the kernel removes it however the process
// ends, and from then on nothing passes.
//
// Packets of the guard itself are known by a random mark. Setting a mark needs CAP_NET_ADMIN or, on
// newer kernels, CAP_NET_RAW; a sandbox has neither.
package wall

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"sandbox.internal/egress/policy"
)

const (
	wallTable = "sandbox_wall"
	gateTable = "sandbox_gate"

	// inUse is how long an address that a name resolved to stays reachable for an open connection
	// that says nothing.
	inUse = 2 * time.Hour

	// gateWait is how long Open waits for the gate of a former process to go.
	gateWait = 5 * time.Second

	// maxAddresses bounds the addresses that names resolved to. More make learning fail.
	maxAddresses = 1 << 16

	// maxInUse bounds those of them that open connections use. Of a connection beyond that the
	// address is reachable for as long as it was learned for. A change of the policy reads them
	// all, at 500 bytes each, and the sandbox decides how many there are.
	maxInUse = 1 << 14
)

// Options configures a [Wall].
type Options struct {
	// DNSPort is the port on the loopback that queries are redirected to.
	DNSPort uint16
	// APIPort is the port of the sidecar's own API. While the gate is closed connections to it are
	// refused, so that no process in the sandbox can answer in the sidecar's place.
	APIPort uint16
	// APIAddr is the IPv4 address that the API listens on; the zero and the unspecified address stand
	// for all.
	APIAddr netip.Addr
	// LogGroup is the group that [Listen] reads.
	LogGroup uint16
	// Neighbours are IPv4 networks from which no connection may begin, the API's included, but for the addresses of
	// Gateways. Each has a prefix of its own.
	Neighbours []netip.Prefix
	Gateways   []netip.Addr
}

// Wall is a packet filter that stands. It is safe for concurrent use.
type Wall struct {
	mark uint32
	gate *netlink.Conn

	mu         sync.Mutex
	conn       *nftables.Conn
	table      *nftables.Table
	verdict    *nftables.Chain // of outgoing packets
	answer     *nftables.Chain // of incoming packets that answer outgoing ones
	pass       string
	deny       string
	would      string
	learned    *nftables.Set // addresses of allowed names, by the answers' time to live
	inUse      *nftables.Set // those of them that open connections use
	generation int
	policySets []*nftables.Set // the sets of the policy in force
}

// Build puts up the wall with a policy, and opens no gate: nothing passes yet. A wall that an
// earlier process left is replaced in one step. Addresses learned before are removed.
func Build(options Options, compiled *policy.Compiled) (*Wall, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(wideBuffers))
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	w := &Wall{conn: conn, mark: newMark()}
	w.raise(options)
	if err = w.fill(compiled); err == nil {
		err = w.conn.Flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build the wall: %w", err), conn.CloseLasting())
	}
	return w, nil
}

// Mark is the mark that the guard's own packets carry ([syscall.SO_MARK]); they pass whatever the
// policy says.
func (w *Wall) Mark() uint32 { return w.mark }

// Open opens the gate: from now on what the policy allows passes, until the process ends or Close.
func (w *Wall) Open() error {
	// The kernel may not have removed the gate of a process that has just exited yet.
	for deadline := time.Now().Add(gateWait); ; time.Sleep(10 * time.Millisecond) {
		gate, err := netlink.Dial(syscall.NETLINK_NETFILTER, nil)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		if err = openGate(gate); err == nil {
			w.gate = gate
			return nil
		}
		err = errors.Join(fmt.Errorf("open the gate: %w", err), gate.Close())
		if !errors.Is(err, syscall.EEXIST) && !errors.Is(err, syscall.EPERM) ||
			time.Now().After(deadline) {
			return err
		}
	}
}

// Close closes the gate. The wall stays, and nothing passes.
func (w *Wall) Close() error {
	var err error
	if w.gate != nil {
		err = w.gate.Close()
	}
	return errors.Join(err, w.conn.CloseLasting())
}

// Apply puts a policy into force, in one step, for open connections too. The addresses that names
// resolved to are those of learned from then on, and no others, whatever was learned before. Of
// those that open connections use, the ones stay for which keep returns true.
func (w *Wall) Apply(compiled *policy.Compiled, keep func(netip.Addr) bool,
	learned []Address) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	used, err := w.living(w.inUse, keep)
	if err != nil {
		return err
	}
	// Emptied and filled again without a look at it: while the kernel resizes a set it may leave
	// some elements out of a listing, and one that is not named would stay.
	w.conn.FlushSet(w.learned)
	oldSets, oldInUse := w.policySets, w.inUse
	err = errors.Join(w.addElements(w.learned, merge(learned)), w.fill(compiled),
		w.addElements(w.inUse, used))
	if err == nil {
		for _, set := range oldSets {
			w.conn.DelSet(set)
		}
		err = w.conn.Flush()
	}
	if err != nil {
		w.policySets, w.inUse = oldSets, oldInUse
		return fmt.Errorf("apply the policy: %w", err)
	}
	return nil
}

// living returns the elements of a set that have not timed out and for which keep returns true,
// each for as long as it is left.
func (w *Wall) living(set *nftables.Set,
	keep func(netip.Addr) bool) ([]nftables.SetElement, error) {
	elements, err := w.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set.Name, err)
	}
	kept := make(map[netip.Addr]time.Duration) // the kernel may list an element twice
	for _, element := range elements {
		if addr, ok := netip.AddrFromSlice(element.Key); ok && element.Expires > 0 && keep(addr) {
			kept[addr] = element.Expires
		}
	}
	var living []nftables.SetElement
	for addr, left := range kept {
		living = append(living, nftables.SetElement{Key: addr.AsSlice(), Timeout: left})
	}
	return living, nil
}

// Address is an address that an allowed name resolved to, and how long it may be reached.
type Address struct {
	Addr netip.Addr
	For  time.Duration
	// Known says that the address was learned before and may still be reachable.
	Known bool
}

// Learn makes addresses reachable. It returns once packets to them pass.
func (w *Wall) Learn(addresses []Address) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var fresh, known []Address
	for _, address := range addresses {
		if address.Known {
			known = append(known, address)
		} else {
			fresh = append(fresh, address)
		}
	}
	// Adding an element that exists leaves its time as it is, so it is deleted first; deleting one
	// that has timed out fails.
	err := w.renew(merge(fresh), merge(known))
	if errors.Is(err, syscall.ENOENT) {
		err = w.renewEach(merge(addresses), merge(known))
	}
	if err != nil {
		return fmt.Errorf("learn addresses: %w", err)
	}
	return nil
}

// renewEach adds all elements, and then renews the known ones one by one.
func (w *Wall) renewEach(all, known []nftables.SetElement) error {
	if err := w.renew(all, nil); err != nil {
		return err
	}
	for _, element := range known {
		if err := w.renew(nil, []nftables.SetElement{element}); err != nil &&
			!errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	return nil
}

// renew adds elements, and replaces the known ones, all in one step.
func (w *Wall) renew(fresh, known []nftables.SetElement) error {
	if len(known) > 0 {
		bare := make([]nftables.SetElement, len(known))
		for i, element := range known {
			bare[i].Key = element.Key
		}
		if err := w.conn.SetDeleteElements(w.learned, bare); err != nil {
			return err
		}
	}
	if err := w.addElements(w.learned, known); err != nil {
		return err
	}
	if err := w.addElements(w.learned, fresh); err != nil {
		return err
	}
	return w.conn.Flush()
}

// addElements adds in portions, because the length of a netlink attribute is 16 bits wide.
func (w *Wall) addElements(set *nftables.Set, elements []nftables.SetElement) error {
	const portion = 1000
	for len(elements) > 0 {
		n := min(len(elements), portion)
		if err := w.conn.SetAddElements(set, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

// merge makes elements of addresses, each once, for the longest of its times.
func merge(addresses []Address) []nftables.SetElement {
	var elements []nftables.SetElement
	at := make(map[netip.Addr]int)
	for _, address := range addresses {
		if i, ok := at[address.Addr]; ok {
			elements[i].Timeout = max(elements[i].Timeout, address.For)
			continue
		}
		at[address.Addr] = len(elements)
		elements = append(elements,
			nftables.SetElement{Key: address.Addr.AsSlice(), Timeout: address.For})
	}
	return elements
}

func wideBuffers(conn *netlink.Conn) error {
	const size = 4 << 20 // bytes; a policy of 4096 rules is one message of 300 KiB
	return errors.Join(conn.SetWriteBuffer(size), conn.SetReadBuffer(size))
}

// newMark returns a mark whose lowest bit, the gate's, is not set, and that is not 0.
func newMark() uint32 {
	var bytes [4]byte
	for {
		rand.Read(bytes[:]) // never fails
		if mark := binary.NativeEndian.Uint32(bytes[:]) &^ gateBit; mark != 0 {
			return mark
		}
	}
}
