package config

// Egress is the section [egress]: what sandboxes may reach. Not supported yet.
type Egress struct {
	// Image is the reference of the egress sidecar's image.
	Image string `toml:"image"`
}

func (e Egress) check(p *problems) {
	if e.Image != "" {
		p.notYet("egress.image", e.Image)
	}
}

// IngressMode is how clients reach sandboxes.
type IngressMode string

// The ingress modes.
const (
	// IngressDirect publishes a port of the host for each sandbox.
	IngressDirect IngressMode = "direct"
	// IngressGateway routes through one gateway; not supported yet.
	IngressGateway IngressMode = "gateway"
)

// RouteMode is how a gateway tells sandboxes apart.
type RouteMode string

// The gateway's routing schemes ("Networking rules", 5).
const (
	RouteWildcard RouteMode = "wildcard"
	RouteURI      RouteMode = "uri"
	RouteHeader   RouteMode = "header"
)

// Ingress is the section [ingress]: how clients reach sandboxes.
type Ingress struct {
	Mode    IngressMode `toml:"mode"`
	Gateway Gateway     `toml:"gateway"`
}

// Gateway is the section [ingress.gateway]. Not supported yet.
type Gateway struct {
	// Address is a wildcard domain, or an IP address with an optional port.
	Address string `toml:"address"`
	Route   Route  `toml:"route"`
}

// Route is the section [ingress.gateway.route]. Not supported yet.
type Route struct {
	// Mode is empty when there is no gateway.
	Mode RouteMode `toml:"mode"`
}

func (i Ingress) check(p *problems, runtime RuntimeType) {
	switch {
	case i.Mode == IngressGateway && runtime == RuntimeDocker:
		p.add("ingress.mode", "must be direct, because the docker runtime requires it (got %q)", string(i.Mode))
	case i.Mode == IngressGateway:
		p.notYet("ingress.mode", string(i.Mode))
	default:
		checkOneOf(p, "ingress.mode", i.Mode, IngressDirect, IngressGateway)
	}
	if i.Gateway.Address != "" {
		p.notYet("ingress.gateway.address", i.Gateway.Address)
	}
	switch mode := i.Gateway.Route.Mode; mode {
	case "":
	case RouteWildcard, RouteURI, RouteHeader:
		p.notYet("ingress.gateway.route.mode", string(mode))
	default:
		checkOneOf(p, "ingress.gateway.route.mode", mode, RouteWildcard, RouteURI, RouteHeader)
	}
}
