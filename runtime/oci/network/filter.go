package network

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Names of the table's sets and maps.
const (
	membersSet = "members" // hardware address . address of each container
	portsMap   = "ports"   // published on all addresses: port to address . port
	boundMap   = "bound"   // published on one: address . port to address . port
	serversSet = "servers" // name servers on the host itself, and link-local ones
	uplinksSet = "uplinks" // interfaces that lead to the outside
	flowsSet   = "flows"   // the connections that each container has begun, filled by the kernel
	fullSet    = "full"    // containers that had too many a moment ago, also filled by it
)

// filter is the nftables table, and the one of its name for ARP.
type filter struct {
	name    string
	bridge  string
	subnet  netip.Prefix
	gateway netip.Addr
	table   *nftables.Table
	arp     *nftables.Table // nil when the kernel has none for ARP, see openARP
	conn    *nftables.Conn  // for elements, see change; nil until it is needed
	fixed   uint32          // most connections that a container begins; zero stands for mostFlows
	counts  bool            // whether the kernel counts them
	flows   uint32          // the bound that the table has

	arpFamily nftables.TableFamily
	countOver func(n uint32) expr.Any // matches what is beyond n connections
}

func newFilter(b bridge, o Options) filter {
	f := filter{name: b.name, bridge: b.name, subnet: b.prefix, gateway: b.gateway, fixed: o.flows, counts: true,
		table:     &nftables.Table{Name: b.name, Family: nftables.TableFamilyINet},
		arpFamily: cmp.Or(o.arpFamily, nftables.TableFamilyARP), countOver: o.countOver}
	if f.countOver == nil {
		f.countOver = func(n uint32) expr.Any {
			return &expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}
		}
	}
	return f
}

// openARP makes the table for ARP, empty, or keeps the one of an earlier process. Its error is
// EOPNOTSUPP when the kernel has no such tables.
func (f *filter) openARP() error {
	conn, err := connect()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Name: f.name, Family: f.arpFamily})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make a table for ARP: %w", err)
	}
	f.arp = table
	return nil
}

// connect opens a batch. Buffers are for tables with thousands of elements.
func connect() (*nftables.Conn, error) {
	const size = 4 << 20
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(size), c.SetWriteBuffer(size))
	}))
}

// sets are the sets and maps, empty.
func (f *filter) sets() map[string]*nftables.Set {
	endpoint := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	sets := map[string]*nftables.Set{
		membersSet: {Table: f.table, Name: membersSet, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeEtherAddr, nftables.TypeIPAddr)},
		portsMap: {Table: f.table, Name: portsMap, IsMap: true, KeyType: nftables.TypeInetService,
			DataType: endpoint},
		boundMap: {Table: f.table, Name: boundMap, IsMap: true, Concatenation: true, KeyType: endpoint,
			DataType: endpoint},
		serversSet: {Table: f.table, Name: serversSet, KeyType: nftables.TypeIPAddr},
		uplinksSet: {Table: f.table, Name: uplinksSet, KeyType: nftables.TypeIFName},
	}
	if f.counts {
		const size = 1 << 16 // containers, of which a bridge has far fewer
		sets[flowsSet] = &nftables.Set{Table: f.table, Name: flowsSet, Dynamic: true, Size: size,
			KeyType: nftables.TypeIPAddr}
		sets[fullSet] = &nftables.Set{Table: f.table, Name: fullSet, Dynamic: true, Size: size,
			KeyType: nftables.TypeIPAddr, HasTimeout: true}
	}
	return sets
}

// mostFlows is the bound that the table must have.
func (f *filter) mostFlows() uint32 {
	if f.fixed > 0 {
		return f.fixed
	}
	return mostFlows()
}

func (f *filter) tables() []*nftables.Table {
	if f.arp == nil {
		return []*nftables.Table{f.table}
	}
	return []*nftables.Table{f.table, f.arp}
}

// write replaces the tables, in one transaction. The count of connections begins again.
func (f *filter) write(all []Attachment, servers []netip.Addr, uplinks []string) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	f.flows = f.mostFlows()
	for _, table := range f.tables() {
		conn.AddTable(table) // so that there is one to remove
		conn.DelTable(table)
		conn.AddTable(table)
	}
	elements := map[string][]nftables.SetElement{}
	for _, a := range all {
		for set, more := range elementsOf(a) {
			elements[set] = append(elements[set], more...)
		}
	}
	for _, server := range servers {
		elements[serversSet] = append(elements[serversSet], nftables.SetElement{Key: server.AsSlice()})
	}
	for _, uplink := range uplinks {
		elements[uplinksSet] = append(elements[uplinksSet], nftables.SetElement{Key: interfaceKey(uplink)})
	}
	for name, set := range f.sets() {
		if err := addSet(conn, set); err != nil {
			return err
		}
		// A message holds at most 64 KiB of elements.
		const most = 512
		for rest := elements[name]; len(rest) > 0; {
			some := rest[:min(most, len(rest))]
			rest = rest[len(some):]
			if err := conn.SetAddElements(set, some); err != nil {
				return err
			}
		}
	}
	policy := nftables.ChainPolicyAccept
	for _, c := range f.chains() {
		added := conn.AddChain(&nftables.Chain{Name: c.name, Table: c.table, Type: c.kind,
			Hooknum: c.hook, Priority: &c.priority, Policy: &policy})
		for _, rule := range c.rules {
			conn.AddRule(&nftables.Rule{Table: c.table, Chain: added, Exprs: rule})
		}
	}
	return conn.Flush()
}

// setCounter is held while a set is added: the library counts them in a variable of its package,
// and there may be several networks.
var setCounter sync.Mutex

func addSet(conn *nftables.Conn, set *nftables.Set) error {
	setCounter.Lock()
	defer setCounter.Unlock()
	return conn.AddSet(set, nil)
}

// complete reports whether the tables have all of their chains and rules.
func (f *filter) complete() bool {
	if f.flows != f.mostFlows() {
		return false
	}
	conn, err := connect()
	if err != nil {
		return false
	}
	for _, c := range f.chains() {
		rules, err := conn.GetRules(c.table, &nftables.Chain{Name: c.name})
		if err != nil || len(rules) != len(c.rules) {
			return false
		}
	}
	return true
}

// add enters an attachment.
func (f *filter) add(a Attachment) error {
	return f.change(func(sets map[string]*nftables.Set) error {
		for name, elements := range elementsOf(a) {
			if err := f.conn.SetAddElements(sets[name], elements); err != nil {
				return err
			}
		}
		return nil
	})
}

// drop removes an attachment, and the count of its connections: they are to be deleted, and count
// no more for the next container with the address.
func (f *filter) drop(a Attachment) error {
	return f.change(func(sets map[string]*nftables.Set) error {
		all := elementsOf(a)
		if f.counts {
			all[flowsSet] = []nftables.SetElement{{Key: a.Address.AsSlice()}}
			// So that there is one to remove.
			if err := f.conn.SetAddElements(sets[flowsSet], all[flowsSet]); err != nil {
				return err
			}
		}
		for name, elements := range all {
			if err := f.conn.SetDeleteElements(sets[name], elements); err != nil {
				return err
			}
		}
		return nil
	})
}

// dropPorts removes the published ports of an attachment, which stays.
func (f *filter) dropPorts(a Attachment) error {
	return f.changePorts(a, func(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
		return conn.SetDeleteElements(set, elements)
	})
}

// addPorts enters the published ports of an attachment that is there without them.
func (f *filter) addPorts(a Attachment) error {
	return f.changePorts(a, func(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
		return conn.SetAddElements(set, elements)
	})
}

func (f *filter) changePorts(a Attachment, apply func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	return f.change(func(sets map[string]*nftables.Set) error {
		for name, elements := range elementsOf(a) {
			if name == membersSet {
				continue
			}
			if err := apply(f.conn, sets[name], elements); err != nil {
				return err
			}
		}
		return nil
	})
}

// change applies changes of elements in one transaction. Its connection stays open: to close one
// after a removal takes 10 ms, in which the kernel waits until what was removed is out of use.
func (f *filter) change(apply func(sets map[string]*nftables.Set) error) error {
	if f.conn == nil {
		conn, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		f.conn = conn
	}
	if err := apply(f.sets()); err != nil {
		return errors.Join(err, f.disconnect())
	}
	if err := f.conn.Flush(); err != nil {
		return errors.Join(err, f.disconnect()) // answers of this batch may be left in it
	}
	return nil
}

func (f *filter) disconnect() error {
	if f.conn == nil {
		return nil
	}
	err := f.conn.CloseLasting()
	f.conn = nil
	return err
}

// remove removes the tables, if there are any.
func (f *filter) remove() error {
	if f.table == nil {
		return nil
	}
	conn, err := connect()
	if err != nil {
		return err
	}
	for _, table := range f.tables() {
		conn.AddTable(table)
		conn.DelTable(table)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove the tables: %w", err)
	}
	return nil
}

// elementsOf are the elements of an attachment, by the set that they are in.
func elementsOf(a Attachment) map[string][]nftables.SetElement {
	member := append(append([]byte(hardware(a.Address)), 0, 0), a.Address.AsSlice()...)
	elements := map[string][]nftables.SetElement{membersSet: {{Key: member}}}
	for containerPort, hostPort := range a.Ports {
		value := endpointKey(a.Address, containerPort)
		if a.Publish.IsValid() {
			elements[boundMap] = append(elements[boundMap],
				nftables.SetElement{Key: endpointKey(a.Publish, hostPort), Val: value})
			continue
		}
		elements[portsMap] = append(elements[portsMap],
			nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, uint16(hostPort)), Val: value})
	}
	return elements
}

// endpointKey is an address and a port as a compound key, of which each part fills whole registers.
func endpointKey(address netip.Addr, port int) []byte {
	return append(binary.BigEndian.AppendUint16(address.AsSlice(), uint16(port)), 0, 0)
}

func interfaceKey(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}
