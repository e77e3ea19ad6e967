// Package config reads the settings of the egress sidecar. An explicit flag overrides an environment variable, which overrides the
// default.
//
// # How the sidecar is started
//
// Whoever starts sandboxes (the lifecycle service) starts the sidecar first, because its container owns the network namespace, and
// lets the sandbox's container join it:
//
//	docker run -d --name S --network bridge --cap-drop ALL --cap-add NET_ADMIN --sysctl net.ipv6.conf.all.disable_ipv6=1 \
//	    --publish 18080 --publish 44772 -e EGRESS_ACCESS_TOKEN=... -e EGRESS_POLICY='{"defaultAction":"deny"}' sandbox/egress:dev
//	docker run -d --network container:S --cap-drop NET_ADMIN --cap-drop NET_RAW IMAGE
//
// Ports of the sandbox are published by the sidecar's container. The sandbox must have neither NET_ADMIN nor NET_RAW, and not the
// sidecar's process namespace. Port 18080 must be reached directly, never through the sandbox's execd: a root process in the sandbox
// could read the token there. The wall stands when /healthz answers; start the sandbox's container then.
//
// The image's process 1 (execd/cmd/egress-init) starts the guard (execd/cmd/egress) again when it dies, and nothing passes
// meanwhile. It must be process 1 that lives on, because the namespace ends with the container: when the whole sidecar's container
// has died, its sandbox is cut off for good, and is to be restarted together with it.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"sandbox.internal/execd/egress/policy"
)

// Settings are the effective settings of one sidecar.
type Settings struct {
	// Policy holds until the API changes it. A policy that the state directory holds already wins over it.
	Policy policy.Policy
	// AccessToken is the secret that every request but /healthz carries; empty turns authentication off.
	AccessToken string
	// Host is the IP address to listen on; empty means every interface.
	Host string
	// Port is the TCP port of the API, 0 to 65535; with 0 the kernel chooses a free one.
	Port int
	// Upstream are the name servers that names are asked from; empty means those of /etc/resolv.conf.
	Upstream []netip.AddrPort
	// StateDir is the folder that keeps the policy while the guard is restarted.
	StateDir string
	// LogLevel is a syslog severity, 0 (Emergency) to 7 (Debug): messages of this severity and worse are written.
	LogLevel int
	// Restarts is how often the guard had to be started again; process 1 says so.
	Restarts int
}

// EnvRestarts is the variable in which process 1 tells the guard how often it had to be started again.
const EnvRestarts = "EGRESS_RESTARTS"

// Addr returns the address to listen on, in the form that net.Listen takes.
func (s Settings) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// setting is one row of the table: its names, its default in the notation of its flag, and how a value is checked and stored.
type setting struct {
	flag, env, fallback, meaning string
	set                          func(*Settings, string) error
}

func table() []setting {
	return []setting{
		{"policy", "EGRESS_POLICY", "{}", "the policy at the first start, as JSON; {} allows everything", setPolicy},
		{"access-token", "EGRESS_ACCESS_TOKEN", "", "secret of the API; empty turns authentication off", setAccessToken},
		{"host", "EGRESS_HOST", "", "IP address of the API; empty means every interface", setHost},
		{"port", "EGRESS_PORT", "18080", "port of the API; 0 takes any free one", setPort},
		{"upstream", "EGRESS_UPSTREAM", "", "name servers, IP[:PORT] with commas between; unset means those of /etc/resolv.conf", setUpstream},
		{"state-dir", "EGRESS_STATE_DIR", "/run/egress", "folder that keeps the policy while the guard is restarted", setStateDir},
		{"log-level", "EGRESS_LOG_LEVEL", "6", "0 Emergency, 1 Alert, 2 Critical, 3 Error, 4 Warning, 5 Notice, 6 Info, 7 Debug", setLogLevel},
	}
}

// Parse computes the settings from the command line (without the program's name) and the environment. An empty variable counts as
// unset; an empty flag does not. The error names the flag or variable and the rule that it breaks. For -h and --help it writes the
// table of settings to usage and returns flag.ErrHelp.
func Parse(args []string, getenv func(string) string, usage io.Writer) (Settings, error) {
	given := make(map[string]string)
	flags := flag.NewFlagSet("egress", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, row := range table() {
		flags.Func(row.flag, row.meaning, func(value string) error {
			given[row.flag] = value
			return nil
		})
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return Settings{}, errors.Join(err, writeUsage(usage))
	case err != nil:
		return Settings{}, fmt.Errorf("%w (--help shows every flag)", err)
	case flags.NArg() > 0:
		return Settings{}, fmt.Errorf("unexpected argument %q: only flags are accepted here", flags.Arg(0))
	}
	var settings Settings
	for _, row := range table() {
		value, source := row.fallback, "default of --"+row.flag
		if fromEnv := getenv(row.env); fromEnv != "" {
			value, source = fromEnv, "environment variable "+row.env
		}
		if fromFlag, ok := given[row.flag]; ok {
			value, source = fromFlag, "flag --"+row.flag
		}
		if err := row.set(&settings, value); err != nil {
			return Settings{}, fmt.Errorf("%s: %w", source, err)
		}
	}
	// Nobody but process 1 sets it; what it does not understand, it did not set.
	settings.Restarts, _ = strconv.Atoi(getenv(EnvRestarts))
	return settings, nil
}

func writeUsage(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FLAG\tENVIRONMENT\tDEFAULT\tMEANING")
	for _, row := range table() {
		fallback := row.fallback
		if fallback == "" {
			fallback = "-"
		}
		fmt.Fprintf(out, "--%s\t%s\t%s\t%s\n", row.flag, row.env, fallback, row.meaning)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write usage: %w", err)
	}
	_, err := fmt.Fprintln(w, "\nA flag overrides its environment variable, which overrides the default.")
	return err
}

func setPolicy(s *Settings, value string) (err error) {
	s.Policy, err = policy.Parse([]byte(value))
	return err
}

// setAccessToken keeps the value itself out of the message: errors end in logs.
func setAccessToken(s *Settings, value string) error {
	for _, char := range []byte(value) {
		if char <= ' ' || char > '~' {
			return errors.New("must be visible ASCII without spaces, because it travels in an HTTP header")
		}
	}
	s.AccessToken = value
	return nil
}

func setHost(s *Settings, value string) error {
	if value != "" {
		if _, err := netip.ParseAddr(value); err != nil {
			return fmt.Errorf("must be an IP address, or empty for every interface, got %q", value)
		}
	}
	s.Host = value
	return nil
}

func setPort(s *Settings, value string) (err error) {
	s.Port, err = parseInt(value, 65535)
	return err
}

func setLogLevel(s *Settings, value string) (err error) {
	s.LogLevel, err = parseInt(value, 7)
	return err
}

func parseInt(value string, maximum int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maximum {
		return 0, fmt.Errorf("must be a whole number from 0 to %d, got %q", maximum, value)
	}
	return n, nil
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

func setStateDir(s *Settings, value string) error {
	if !filepath.IsAbs(value) {
		return fmt.Errorf("must be an absolute path, got %q", value)
	}
	s.StateDir = filepath.Clean(value)
	return nil
}
