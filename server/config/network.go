package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// Egress is the section [egress]: what sandboxes may reach. On one machine it is used in
// bridge mode alone.
type Egress struct {
	// Image is the reference of the egress sidecar's image. With it every sandbox in bridge mode
	// has a sidecar; without it a networkPolicy is 400.
	Image string `toml:"image"`
	// Upstream are the name servers that sidecars ask: IPv4 addresses with an optional port. Empty:
	// those that the engine gives to containers, or the cluster to pods.
	Upstream []string `toml:"upstream"`
}

func (e Egress) check(p *problems) {
	if hasSpace(e.Image) {
		p.add("egress.image", "must be an image reference without spaces (got %q)", e.Image)
	}
	for i, server := range e.Upstream {
		addr, err := netip.ParseAddr(server)
		if err != nil {
			var withPort netip.AddrPort
			withPort, err = netip.ParseAddrPort(server)
			addr = withPort.Addr()
		}
		if err != nil || !addr.Is4() {
			p.add(fmt.Sprintf("egress.upstream[%d]", i),
				"must be an IPv4 address with an optional port, because sandboxes with a sidecar have no IPv6 (got %q)", server)
		}
	}
}

func (e Egress) warnings(mode NetworkMode, runtime RuntimeType, key func(string) string) []string {
	switch {
	case e.Image != "" && mode == NetworkHost && runtime != RuntimeKubernetes:
		return []string{"egress.image has no effect: " + key("sandbox.network_mode") + " is host, and network policies need bridge"}
	case e.Image == "" && len(e.Upstream) > 0:
		return []string{"egress.upstream has no effect without egress.image"}
	}
	return nil
}

// IngressMode is how clients reach sandboxes.
type IngressMode string

// The ingress modes.
const (
	// IngressDirect publishes a port of the host for each sandbox; on a cluster clients reach the
	// pod's own address.
	IngressDirect IngressMode = "direct"
	// IngressGateway routes through an ingress; only the kubernetes runtime has it.
	IngressGateway IngressMode = "gateway"
)

// RouteMode is how a request to the ingress names a sandbox.
type RouteMode string

// The ingress's routing schemes ("Networking rules", 5).
const (
	RouteWildcard RouteMode = "wildcard"
	RouteURI      RouteMode = "uri"
	RouteHeader   RouteMode = "header"
)

// Ingress is the section [ingress]: how clients reach sandboxes.
type Ingress struct {
	// Mode is direct or gateway, which the kubernetes runtime alone accepts.
	Mode IngressMode `toml:"mode"`
	// Gateway is the address of the ingress.
	Gateway Gateway `toml:"gateway"`
}

// Gateway is the section [ingress.gateway]. It is used by the gateway mode alone, which only
// the kubernetes runtime has.
type Gateway struct {
	// Address is a wildcard domain such as *.example.com, or a host name or an IP address with an
	// optional port; required in the mode gateway, without effect in the other.
	Address string `toml:"address"`
	// Route is how requests name a port.
	Route Route `toml:"route"`
}

// Route is the section [ingress.gateway.route].
type Route struct {
	// Mode is wildcard (with a wildcard domain, and only then), uri or header; required in the mode
	// gateway, without effect in the other.
	Mode RouteMode `toml:"mode"`
}

func (i Ingress) check(p *problems, runtime RuntimeType) {
	local := runtime == RuntimeLocal || runtime == RuntimeDocker
	if i.Mode == IngressGateway && local {
		p.add("ingress.mode", "must be direct, because the %s runtime requires it (got %q)",
			string(runtime), string(i.Mode))
	} else {
		checkOneOf(p, "ingress.mode", i.Mode, IngressDirect, IngressGateway)
	}
	i.Gateway.check(p, i.Mode == IngressGateway && !local)
}

func (g Gateway) check(p *problems, required bool) {
	const address, mode = "ingress.gateway.address", "ingress.gateway.route.mode"
	domain, wildcard := strings.CutPrefix(g.Address, "*.")
	switch {
	case g.Address == "" && required:
		p.add(address, "is required when ingress.mode is gateway")
	case g.Address == "":
	case wildcard && !isHost(domain), !wildcard && !isHostPort(g.Address):
		p.add(address,
			"must be a wildcard domain such as *.example.com, or a host name or an IP address with an optional port (got %q)", g.Address)
	case wildcard != (g.Route.Mode == RouteWildcard) && g.Route.Mode != "":
		p.add(address, "must be a wildcard domain when %s is wildcard, and only then (got %q)",
			mode, g.Address)
	}
	switch {
	case g.Route.Mode != "":
		checkOneOf(p, mode, g.Route.Mode, RouteWildcard, RouteURI, RouteHeader)
	case required:
		p.add(mode, "is required when ingress.mode is gateway")
	}
}

func (i Ingress) warnings() []string {
	if i.Mode == IngressGateway || i.Gateway == (Gateway{}) {
		return nil
	}
	return []string{"the section [ingress.gateway] has no effect: ingress.mode is " +
		string(i.Mode)}
}
