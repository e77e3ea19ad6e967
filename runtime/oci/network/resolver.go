package network

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The files that name the host's name servers. The second one is read when all of the first are on
// the loopback, where a container cannot reach them.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// publicServers are used when the host names none that a container can reach, as Docker does.
var publicServers = []string{"1.1.1.1", "8.8.8.8"}

// linkLocal has the metadata services of clouds, which give the machine's credentials to whoever
// asks.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// resolver has the name servers of containers.
type resolver struct {
	servers []string
	seen    [2]fileState

	// permitted are those of them that the table refuses without a permission: addresses of the
	// host, and link-local ones, which some clouds have.
	permitted []netip.Addr
}

// fileState says whether a file has changed.
type fileState struct {
	size     int64
	modified time.Time
	inode    uint64
}

// read reads the files when they have changed, and reports whether permitted has. Containers have
// no IPv6, so name servers with IPv6 addresses are left out.
func (r *resolver) read() bool {
	var seen [2]fileState
	for i, name := range resolverFiles {
		var stat unix.Stat_t
		if unix.Stat(name, &stat) == nil {
			seen[i] = fileState{stat.Size, time.Unix(stat.Mtim.Unix()), stat.Ino}
		}
	}
	if r.servers != nil && seen == r.seen {
		return false
	}
	r.seen = seen
	r.servers = nil
	for _, name := range resolverFiles {
		content, err := os.ReadFile(name)
		if err == nil {
			r.servers = nameservers(content)
		}
		if len(r.servers) > 0 {
			break
		}
	}
	if len(r.servers) == 0 {
		r.servers = slices.Clone(publicServers)
	}
	before := r.permitted
	r.permitted = nil
	addresses, _ := list(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, unix.AF_INET) })
	for _, server := range r.addresses() {
		ofHost := func(a netlink.Addr) bool { return a.IP.Equal(server.AsSlice()) }
		if linkLocal.Contains(server) || slices.ContainsFunc(addresses, ofHost) {
			r.permitted = append(r.permitted, server)
		}
	}
	return !slices.Equal(before, r.permitted)
}

// addresses are those of the name servers.
func (r *resolver) addresses() []netip.Addr {
	var all []netip.Addr
	for _, server := range r.servers {
		all = append(all, netip.MustParseAddr(server))
	}
	return all
}

// nameservers returns the name servers of a resolv.conf that containers can reach, at most three,
// as the C library reads.
func nameservers(content []byte) []string {
	var all []string
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		if err == nil && address.Is4() && !address.IsLoopback() && !address.IsUnspecified() && len(all) < 3 {
			all = append(all, address.String())
		}
	}
	return all
}
