package dnsproxy

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// NameServers reads the name servers of a resolv.conf that can be asked from inside a sandbox's
// network. Docker's own, 127.0.0.11, is not among them, because it queries others with packets that
// cannot be distinguished from the sandbox's; those that it would ask are, where the file names
// them.
func NameServers(conf io.Reader) ([]netip.AddrPort, error) {
	var servers []netip.AddrPort
	add := func(text string) {
		addr, err := netip.ParseAddr(text)
		if err == nil && addr.Unmap().Is4() && !addr.IsLoopback() {
			servers = append(servers, netip.AddrPortFrom(addr.Unmap(), dnsPort))
		}
	}
	lines := bufio.NewScanner(conf)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if list, ok := strings.CutPrefix(line, "# ExtServers: ["); ok {
			for field := range strings.FieldsSeq(strings.TrimSuffix(list, "]")) {
				add(strings.TrimSuffix(strings.TrimPrefix(field, "host("), ")"))
			}
		}
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "nameserver" {
			add(fields[1])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the name servers: %w", err)
	}
	return servers, nil
}
