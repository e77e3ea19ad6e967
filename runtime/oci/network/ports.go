package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// reserve finds a free port of the host for each of these ports that has none yet, and keeps other
// processes from taking it: a socket is bound to it that listens only while the container does not
// run, see [Network.Hold].
func (a *attached) reserve(ports []int, published *othersPorts) error {
	if a.Ports == nil {
		a.Ports = make(map[int]int, len(ports))
	}
	if len(ports) == 0 {
		return nil
	}
	others, err := published.get()
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for _, port := range ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("ports: %d is not 1 to 65535", port)
		}
		if _, ok := a.Ports[port]; ok {
			continue
		}
		socket, hostPort, err := bindFree(a.Publish, others, hostPorts())
		if err != nil {
			return fmt.Errorf("publish port %d: %w", port, err)
		}
		a.reserved[port], a.Ports[port] = socket, hostPort
	}
	return nil
}

// span is a range of ports, both ends included.
type span struct{ low, high int }

// hostPorts returns the ports that are given: below those that the kernel gives to connections and
// to programs that listen on any port. One of these is never sent to a container by mistake after
// its program was restarted.
func hostPorts() span {
	const low, least, usual = 20000, 1000, 32768
	ephemeral := usual
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &ephemeral)
	}
	if ephemeral < low+least { // an administrator has widened the kernel's range
		return span{low, 65535}
	}
	return span{low, ephemeral - 1}
}

// bindFree returns a socket bound to a free port of the range that no other network publishes.
func bindFree(publish netip.Addr, others publications, from span) (socket, port int, err error) {
	const attempts = 200
	for range attempts {
		port = from.low + rand.IntN(from.high-from.low+1)
		if others.have(publish, port) {
			continue
		}
		if socket, err = bind(publish, port); err == nil || !errors.Is(err, unix.EADDRINUSE) {
			return socket, port, err
		}
	}
	return -1, 0, fmt.Errorf("%d ports from %d to %d, picked at random, are all in use", attempts, from.low, from.high)
}

// publications are host addresses and ports that networks publish; an invalid address stands for
// all.
type publications map[publication]bool

type publication struct {
	address netip.Addr
	port    int
}

func (p publications) have(address netip.Addr, port int) bool {
	if len(p) == 0 {
		return false
	}
	if p[publication{address, port}] || p[publication{netip.Addr{}, port}] {
		return true
	}
	if address.IsValid() {
		return false
	}
	for published := range p { // on all addresses: so also on that one
		if published.port == port {
			return true
		}
	}
	return false
}

// othersPorts keeps what other networks publish until their tables change: to read it takes longer
// than the rest of Attach.
type othersPorts struct {
	own string // the table of this network

	mu        sync.Mutex
	published publications // nil when it is to be read
	unsure    bool         // changes are not followed
}

func (o *othersPorts) get() (publications, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.published != nil && !o.unsure {
		return o.published, nil
	}
	var err error
	o.published, err = publishedByOthers(o.own)
	return o.published, err
}

// forget makes the next get read again: the tables have changed, or, with unsure, may change from
// now on without notice.
func (o *othersPorts) forget(unsure bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.published, o.unsure = nil, o.unsure || unsure
}

// publishedByOthers reads what the tables of other networks publish. A service that was killed has
// no sockets at the ports of its containers, which run on and are reached there.
func publishedByOthers(own string) (publications, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	published := publications{}
	for _, table := range tables {
		if table.Name == own {
			continue
		}
		for name, decode := range map[string]func(key []byte) (publication, bool){portsMap: decodePort, boundMap: decodeBound} {
			set, err := conn.GetSetByName(table, name)
			if err != nil {
				continue // a table of another program
			}
			elements, err := conn.GetSetElements(set)
			if err != nil {
				continue // removed meanwhile
			}
			for _, element := range elements {
				if p, ok := decode(element.Key); ok {
					published[p] = true
				}
			}
		}
	}
	return published, nil
}

func decodePort(key []byte) (publication, bool) {
	if len(key) < 2 {
		return publication{}, false
	}
	return publication{port: int(binary.BigEndian.Uint16(key))}, true
}

func decodeBound(key []byte) (publication, bool) {
	if len(key) < 6 {
		return publication{}, false
	}
	return publication{netip.AddrFrom4([4]byte(key[:4])), int(binary.BigEndian.Uint16(key[4:]))}, true
}

// reserveAgain reserves the ports of a container that runs. A port that another process has taken
// meanwhile stays published.
func (n *Network) reserveAgain(a Attachment) map[int]int {
	sockets := map[int]int{}
	for port, hostPort := range a.Ports {
		socket, err := bindAgain(a.Publish, hostPort)
		if err != nil {
			n.log.Warn().Err(err).Str("container_id", a.Container).Int("port", port).
				Msg("cannot reserve a published port of a running container: another process listens on it")
			continue
		}
		sockets[port] = socket
	}
	return sockets
}

// reserveKept reserves the ports of containers that are not attached. One whose port another
// process or network has taken meanwhile gets another one.
func (n *Network) reserveKept(all []Attachment) {
	if len(all) == 0 {
		return
	}
	others, err := publishedByOthers(n.options.Bridge) // changes of these are not followed yet
	if err != nil {
		n.log.Warn().Err(err).Msg("cannot read which ports other networks publish: those of containers that are stopped are not kept")
		return
	}
	for _, a := range all {
		kept := newAttached(Attachment{Container: a.Container, Publish: a.Publish, Ports: map[int]int{}})
		for port, hostPort := range a.Ports {
			socket, err := -1, errPublished
			if !others.have(a.Publish, hostPort) {
				socket, err = bindAgain(a.Publish, hostPort)
			}
			if err != nil {
				n.log.Warn().Err(err).Str("container_id", a.Container).Int("port", port).
					Msg("cannot keep the published port of a container that is stopped: it gets another one when it is started")
				continue
			}
			kept.reserved[port], kept.Ports[port] = socket, hostPort
		}
		if len(kept.reserved) > 0 {
			n.kept[a.Container] = kept
		}
	}
}

var errPublished = errors.New("another network publishes it")

// bind returns a socket bound to the TCP port of the host.
func bind(publish netip.Addr, port int) (socket int, err error) {
	return bindSocket(publish, port, false)
}

// bindAgain is bind for a port that an earlier process had. Connections that it has accepted there,
// and that have not ended as a whole, do not matter.
func bindAgain(publish netip.Addr, port int) (socket int, err error) {
	return bindSocket(publish, port, true)
}

func bindSocket(publish netip.Addr, port int, again bool) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	address := &unix.SockaddrInet4{Port: port}
	if publish.IsValid() {
		address.Addr = publish.As4()
	}
	if again {
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(socket, address)
	}
	if err == nil && again { // else another socket with the option could listen there
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	}
	if err == nil {
		return socket, nil
	}
	_ = unix.Close(socket)
	return -1, fmt.Errorf("reserve port %d on %v: %w", port, netip.AddrFrom4(address.Addr), err)
}
