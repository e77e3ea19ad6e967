package registries

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Rules say which registries with internal addresses may be asked.
type Rules struct {
	// Listed are those that every key may name: hosts with an optional port, as in the names of
	// images.
	Listed []string
	// Never, if not nil, reports addresses that no image leads to, whoever asks and whatever is
	// listed, such as the ports that sandboxes publish. listed says whether the host that was asked
	// for is in Listed.
	Never func(address netip.AddrPort, listed bool) bool
}

// RefusedError is why a host is not asked. The same request ends the same way again.
type RefusedError string

func (e RefusedError) Error() string { return string(e) }

// lookupTimeout bounds how long a name may take to be resolved.
const lookupTimeout = 5 * time.Second

// Lists reports whether the host, perhaps with a port, is listed. Without a port it is that of
// HTTPS or HTTP.
func (r Rules) Lists(host string) bool {
	if slices.Contains(r.Listed, host) {
		return true
	}
	bare, port, err := net.SplitHostPort(host)
	return err == nil && (port == "443" || port == "80") && (slices.Contains(r.Listed, bare) || slices.Contains(r.Listed, "["+bare+"]"))
}

// Check refuses a host, perhaps with a port, that is internal and not listed. A name is resolved;
// one that cannot be is not refused.
func (r Rules) Check(ctx context.Context, host string) error {
	if r.Lists(host) {
		return nil
	}
	bare := (&url.URL{Host: host}).Hostname()
	if IsInternalHost(bare) {
		return Internal(host)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", bare)
	if err != nil {
		return nil //nolint:nilerr // whoever asks the registry finds out, and says it better
	}
	if slices.ContainsFunc(addresses, IsInternal) || slices.ContainsFunc(addresses, IsOwn) {
		return Internal(host)
	}
	return nil
}

// CheckAddress refuses an address that the host, with a port, was resolved to. internal permits one
// that is internal and not listed.
func (r Rules) CheckAddress(host string, address netip.AddrPort, internal bool) error {
	listed := r.Lists(host)
	address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
	if r.Never != nil && r.Never(address, listed) {
		return RefusedError(fmt.Sprintf("%s is an address that sandboxes publish, and never a registry", host))
	}
	if !internal && !listed && (IsInternal(address.Addr()) || IsOwn(address.Addr())) {
		return Internal(host)
	}
	return nil
}

// Internal is the refusal of a host because of its address. It says nothing of what is there.
func Internal(host string) RefusedError {
	return RefusedError(fmt.Sprintf("%s has an internal address (loopback, private or link-local), and is not in runtime.internal_registries", host))
}

// internalRanges are of no public host, beside those that package netip has names for.
var internalRanges = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),     // this network
	netip.MustParsePrefix("100.64.0.0/10"), // shared by providers
	netip.MustParsePrefix("192.0.0.0/24"),  // protocol assignments
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarks
	netip.MustParsePrefix("240.0.0.0/4"),   // reserved, and broadcast
	netip.MustParsePrefix("fec0::/10"),     // site-local
}

// translated are ranges in which addresses of IPv6 stand for one of IPv4, and where in it that
// begins, in bytes.
var translated = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::/96"), 12},
}

// IsInternal reports whether an address is not a public one.
func IsInternal(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if address.IsPrivate() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsUnspecified() || address.IsMulticast() ||
		slices.ContainsFunc(internalRanges, func(r netip.Prefix) bool { return r.Contains(address) }) {
		return true
	}
	for _, t := range translated {
		if bytes := address.AsSlice(); t.prefix.Contains(address) {
			inner, _ := netip.AddrFromSlice(bytes[t.at : t.at+4])
			return IsInternal(inner)
		}
	}
	return false
}

// IsInternalHost reports whether a host, without a port, is an address that is not a public one, or
// localhost. Other names are not resolved.
func IsInternalHost(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return IsLocalhost(host)
	}
	return IsInternal(address)
}

// IsLocalhost reports whether resolvers give the name a loopback address (RFC 6761, 6.3).
func IsLocalhost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// IsOwn reports whether the address is one of this machine, where programs may listen that others
// do not reach.
func IsOwn(address netip.Addr) bool {
	if address.IsLoopback() {
		return true
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(interfaces, func(own net.Addr) bool {
		prefix, err := netip.ParsePrefix(own.String())
		return err == nil && prefix.Addr().Unmap().WithZone("") == address.Unmap().WithZone("")
	})
}
