// Package config reads the settings of the egress sidecar. An explicit flag overrides an
// environment variable, which overrides the default.
//
// # How the sidecar is started
//
// The lifecycle service starts the sidecar before the sandbox, because its container owns the
// network namespace, and lets the sandbox's container join it:
//
//	docker run -d --name S --network bridge --cap-drop ALL --cap-add NET_ADMIN --sysctl net.ipv6.conf.all.disable_ipv6=1 \
//	    --publish 18080 --publish 44772 -e EGRESS_ACCESS_TOKEN=... -e EGRESS_POLICY='{"defaultAction":"deny"}' sandbox/egress:dev
//	docker run -d --network container:S --cap-drop NET_ADMIN --cap-drop NET_RAW IMAGE
//
// Ports of the sandbox are published by the sidecar's container. The sandbox must have neither
// NET_ADMIN nor NET_RAW, and not the sidecar's process namespace. Port 18080 must be reached
// directly, never through the sandbox's execd: a root process in the sandbox could read the token
// there. The firewall is installed when /healthz answers; start the sandbox's container then.
//
// The image's process 1 (egress/cmd/egress-init) starts the egress daemon (egress/cmd/egress) again
// when it ends, and nothing passes meanwhile. It must be process 1 that lives on, because the
// namespace ends with the container: when the whole sidecar's container has ended, its sandbox is
// cut off for good, and is to be restarted together with it.
package config

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"sandbox.internal/egress/policy"
	"sandbox.internal/internal/settings"
	"sandbox.internal/internal/supervisor"
)

// Settings are the effective settings of one sidecar.
type Settings struct {
	// Policy holds until the API changes it. A policy that the state directory holds already wins
	// over it.
	Policy policy.Policy
	// AccessToken is the secret that every request but /healthz carries; empty turns authentication
	// off.
	AccessToken string
	// Host is the IP address to listen on; empty means every interface.
	Host string
	// Port is the TCP port of the API, 0 to 65535; with 0 the kernel chooses a free one.
	Port int
	// Upstream are the name servers that names are asked from; empty means those that
	// /etc/resolv.conf names at the first start, which StateDir keeps.
	Upstream []netip.AddrPort
	// RefuseNeighbours refuses connections from other addresses of the networks that the sidecar is
	// on, but for those of gateways. It is for networks on which containers reach one another, such
	// as Docker's default one.
	RefuseNeighbours bool
	// StateDir is the directory that keeps the policy and the name servers while the egress daemon
	// is restarted. The sandbox must not be able to write it.
	StateDir string
	// LogLevel is a syslog severity, 0 (Emergency) to 7 (Debug): messages of this severity and
	// worse are written.
	LogLevel int
	// Restarts is how often the egress daemon had to be started again; process 1 reports it.
	Restarts int
}

// Addr returns the address to listen on, in the form that net.Listen takes.
func (s Settings) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// table holds every setting.
var table = []settings.Setting[Settings]{
	{Flag: "policy", Env: "EGRESS_POLICY", Default: "{}", Meaning: "the policy at the first start, as JSON; {} allows everything", Set: setPolicy},
	{Flag: "access-token", Env: "EGRESS_ACCESS_TOKEN", Meaning: "secret of the API; empty turns authentication off", Set: setAccessToken},
	{Flag: "host", Env: "EGRESS_HOST", Meaning: "IP address of the API; empty means every interface", Set: setHost},
	{Flag: "port", Env: "EGRESS_PORT", Default: "18080", Meaning: "port of the API; 0 takes any free one", Set: setPort},
	{
		Flag: "upstream", Env: "EGRESS_UPSTREAM",
		Meaning: "name servers, IP[:PORT] with commas between; unset means those of /etc/resolv.conf at the first start", Set: setUpstream,
	},
	{
		Flag: "refuse-neighbours", Env: "EGRESS_REFUSE_NEIGHBOURS", Default: "false",
		Meaning: "true refuses connections from other addresses of the sidecar's own networks, but for gateways", Set: setRefuseNeighbours,
	},
	{
		Flag: "state-dir", Env: "EGRESS_STATE_DIR", Default: "/run/egress",
		Meaning: "directory that keeps policy and name servers while the egress daemon is restarted", Set: setStateDir,
	},
	{Flag: "log-level", Env: "EGRESS_LOG_LEVEL", Default: "6", Meaning: settings.LogLevels, Set: setLogLevel},
}

// Parse computes the settings from the command line (without the program's name) and the
// environment. An empty variable counts as unset; an empty flag does not. The error names the flag
// or variable and the rule that it breaks. For -h and --help it writes the table of settings to
// usage and returns flag.ErrHelp.
func Parse(args []string, getenv func(string) string, usage io.Writer) (Settings, error) {
	effective, err := settings.Parse(table, args, getenv, usage)
	if err != nil {
		return Settings{}, err
	}
	effective.Restarts, _ = supervisor.Restarts(getenv, supervisor.PrefixEgress)
	return effective, nil
}

func setPolicy(s *Settings, value string) (err error) {
	s.Policy, err = policy.Parse([]byte(value))
	return err
}

func setAccessToken(s *Settings, value string) (err error) {
	s.AccessToken, err = settings.Token(value)
	return err
}

func setHost(s *Settings, value string) (err error) {
	s.Host, err = settings.Host(value)
	return err
}

func setPort(s *Settings, value string) (err error) {
	s.Port, err = settings.Port(value)
	return err
}

func setLogLevel(s *Settings, value string) (err error) {
	s.LogLevel, err = settings.LogLevel(value)
	return err
}

func setUpstream(s *Settings, value string) error {
	s.Upstream = nil
	if value == "" {
		return nil
	}
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		server, err := netip.ParseAddrPort(part)
		if err != nil {
			addr, err := netip.ParseAddr(part)
			if err != nil {
				return fmt.Errorf("must be name servers such as 192.0.2.1,192.0.2.2:5353, got %q", part)
			}
			server = netip.AddrPortFrom(addr, 53)
		}
		if !server.Addr().Unmap().Is4() {
			return fmt.Errorf("must be IPv4, because a sandbox with a sidecar has no IPv6, got %q", part)
		}
		s.Upstream = append(s.Upstream, netip.AddrPortFrom(server.Addr().Unmap(), server.Port()))
	}
	return nil
}

func setRefuseNeighbours(s *Settings, value string) error {
	if value != "true" && value != "false" {
		return fmt.Errorf("must be true or false, got %q", value)
	}
	s.RefuseNeighbours = value == "true"
	return nil
}

func setStateDir(s *Settings, value string) error {
	if !filepath.IsAbs(value) {
		return fmt.Errorf("must be an absolute path, got %q", value)
	}
	s.StateDir = filepath.Clean(value)
	return nil
}
