// Package firewall is the packet filter of a sandbox: nftables in the network namespace that the
// sidecar owns and the sandbox shares.
//
// There are two tables. The filter table stays when the process exits; it refuses every packet
// without the pass mark, but for the loopback. The pass mark table puts that mark on packets. It
// belongs to a netlink socket of this process (NFT_TABLE_F_OWNER), so the kernel removes it however
// the process ends, and from then on nothing passes.
//
// Packets of the egress daemon itself are known by a random mark. Setting a mark needs
// CAP_NET_ADMIN or, on newer kernels, CAP_NET_RAW; a sandbox has neither.
package firewall

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
	// The names stay as they are: a sidecar that is restarted with a newer image may find the
	// tables of the older one in the same network namespace, and has to replace them.
	filterTable   = "sandbox_wall"
	passMarkTable = "sandbox_gate"

	// inUse is how long an address that a name resolved to stays reachable for an open connection
	// that says nothing.
	inUse = 2 * time.Hour

	// passMarkWait is how long Open waits for the pass mark table of a former process to go.
	passMarkWait = 5 * time.Second

	// maxAddresses bounds the addresses that names resolved to. More make learning fail.
	maxAddresses = 1 << 16

	// maxInUse bounds those of them that open connections use. Of a connection beyond that the
	// address is reachable for as long as it was learned for. A change of the policy reads them
	// all, at 500 bytes each, and the sandbox decides how many there are.
	maxInUse = 1 << 14
)

// Options configures a [Firewall].
type Options struct {
	// DNSPort is the port on the loopback that queries are redirected to.
	DNSPort uint16
	// APIPort is the port of the sidecar's own API. While packets are not marked connections to it
	// are refused, so that no process in the sandbox can answer in the sidecar's place.
	APIPort uint16
	// APIAddr is the IPv4 address that the API listens on; the zero and the unspecified address
	// stand for all.
	APIAddr netip.Addr
	// LogGroup is the group that [Listen] reads.
	LogGroup uint16
	// Neighbours are IPv4 networks from which no connection may begin, the API's included, but for
	// the addresses of Gateways. Each has a prefix of its own.
	Neighbours []netip.Prefix
	Gateways   []netip.Addr
}

// Firewall is an installed packet filter. It is safe for concurrent use.
type Firewall struct {
	mark     uint32
	passMark *netlink.Conn // owns the pass mark table; nil before Open

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

// Install installs the filter table with a policy, without the pass mark table: nothing passes yet.
// A filter table that an earlier process left is replaced in one step. Addresses learned before are
// removed.
func Install(options Options, compiled *policy.Compiled) (*Firewall, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(wideBuffers))
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	f := &Firewall{conn: conn, mark: newMark()}
	f.addFixedRules(options)
	if err = f.addPolicyRules(compiled); err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("install the firewall: %w", err), conn.CloseLasting())
	}
	return f, nil
}

// Mark is the mark that the egress daemon's own packets carry ([syscall.SO_MARK]); they pass
// whatever the policy says.
func (f *Firewall) Mark() uint32 { return f.mark }

// Open starts to mark packets: from now on what the policy allows passes, until the process ends or
// Close.
func (f *Firewall) Open() error {
	// The kernel may not have removed the table of a process that has just exited yet.
	for deadline := time.Now().Add(passMarkWait); ; time.Sleep(10 * time.Millisecond) {
		conn, err := netlink.Dial(syscall.NETLINK_NETFILTER, nil)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		if err = addPassMark(conn); err == nil {
			f.passMark = conn
			return nil
		}
		err = errors.Join(fmt.Errorf("add the pass mark table: %w", err), conn.Close())
		if !errors.Is(err, syscall.EEXIST) && !errors.Is(err, syscall.EPERM) ||
			time.Now().After(deadline) {
			return err
		}
	}
}

// Close stops to mark packets. The filter table stays, and nothing passes.
func (f *Firewall) Close() error {
	var err error
	if f.passMark != nil {
		err = f.passMark.Close()
	}
	return errors.Join(err, f.conn.CloseLasting())
}

// Apply puts a policy into force, in one step, for open connections too. The addresses that names
// resolved to are those of learned from then on, and no others, whatever was learned before. Of
// those that open connections use, the ones stay for which keep returns true.
func (f *Firewall) Apply(compiled *policy.Compiled, keep func(netip.Addr) bool,
	learned []Address) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	used, err := f.unexpired(f.inUse, keep)
	if err != nil {
		return err
	}
	// Emptied and filled again without a look at it: while the kernel resizes a set it may leave
	// some elements out of a listing, and one that is not named would stay.
	f.conn.FlushSet(f.learned)
	oldSets, oldInUse := f.policySets, f.inUse
	err = errors.Join(f.addElements(f.learned, merge(learned)), f.addPolicyRules(compiled),
		f.addElements(f.inUse, used))
	if err == nil {
		for _, set := range oldSets {
			f.conn.DelSet(set)
		}
		err = f.conn.Flush()
	}
	if err != nil {
		f.policySets, f.inUse = oldSets, oldInUse
		return fmt.Errorf("apply the policy: %w", err)
	}
	return nil
}

// unexpired returns the elements of a set that have not timed out and for which keep returns true,
// each for as long as it is left.
func (f *Firewall) unexpired(set *nftables.Set,
	keep func(netip.Addr) bool) ([]nftables.SetElement, error) {
	elements, err := f.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set.Name, err)
	}
	kept := make(map[netip.Addr]time.Duration) // the kernel may list an element twice
	for _, element := range elements {
		if addr, ok := netip.AddrFromSlice(element.Key); ok && element.Expires > 0 && keep(addr) {
			kept[addr] = element.Expires
		}
	}
	var unexpired []nftables.SetElement
	for addr, left := range kept {
		unexpired = append(unexpired, nftables.SetElement{Key: addr.AsSlice(), Timeout: left})
	}
	return unexpired, nil
}

// Address is an address that an allowed name resolved to, and how long it may be reached.
type Address struct {
	Addr netip.Addr
	For  time.Duration
	// Known says that the address was learned before and may still be reachable.
	Known bool
}

// Learn makes addresses reachable. It returns once packets to them pass.
func (f *Firewall) Learn(addresses []Address) error {
	f.mu.Lock()
	defer f.mu.Unlock()
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
	err := f.renew(merge(fresh), merge(known))
	if errors.Is(err, syscall.ENOENT) {
		err = f.renewEach(merge(addresses), merge(known))
	}
	if err != nil {
		return fmt.Errorf("learn addresses: %w", err)
	}
	return nil
}

// renewEach adds all elements, and then renews the known ones one by one.
func (f *Firewall) renewEach(all, known []nftables.SetElement) error {
	if err := f.renew(all, nil); err != nil {
		return err
	}
	for _, element := range known {
		if err := f.renew(nil, []nftables.SetElement{element}); err != nil &&
			!errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	return nil
}

// renew adds elements, and replaces the known ones, all in one step.
func (f *Firewall) renew(fresh, known []nftables.SetElement) error {
	if len(known) > 0 {
		bare := make([]nftables.SetElement, len(known))
		for i, element := range known {
			bare[i].Key = element.Key
		}
		if err := f.conn.SetDeleteElements(f.learned, bare); err != nil {
			return err
		}
	}
	if err := f.addElements(f.learned, known); err != nil {
		return err
	}
	if err := f.addElements(f.learned, fresh); err != nil {
		return err
	}
	return f.conn.Flush()
}

// addElements adds in portions, because the length of a netlink attribute is 16 bits wide.
func (f *Firewall) addElements(set *nftables.Set, elements []nftables.SetElement) error {
	const portion = 1000
	for len(elements) > 0 {
		n := min(len(elements), portion)
		if err := f.conn.SetAddElements(set, elements[:n]); err != nil {
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

// newMark returns a mark whose lowest bit, the pass bit, is not set, and that is not 0.
func newMark() uint32 {
	var bytes [4]byte
	for {
		rand.Read(bytes[:]) // never fails
		if mark := binary.NativeEndian.Uint32(bytes[:]) &^ passBit; mark != 0 {
			return mark
		}
	}
}
