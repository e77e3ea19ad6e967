package ingress

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Settings configure an ingress. [DefaultSettings] has the defaults.
type Settings struct {
	// Listen is the host and port that clients connect to; Admin the one of /metrics and /healthz,
	// empty for none.
	Listen string
	Admin  string
	// Mode is how requests name their sandbox. Domain is needed in the mode wildcard: sandboxes
	// are hosts below it.
	Mode   Mode
	Domain string
	// Service is the URL of the lifecycle service, whose sandboxes are served, and Key an
	// administrator's key for it, which never reaches a sandbox.
	Service string
	Key     string
	// Routes is a file with static routes, and Source a function that keeps the routes; each takes
	// the place of a service.
	Routes string
	Source Source
	// SigningKey is the file with the keys of signed endpoints; empty means that there are none.
	SigningKey string
	// Connections bounds the connections of clients, SandboxConnections the requests and
	// connections of one sandbox, and Sandboxes the routes.
	Connections        int
	SandboxConnections int
	Sandboxes          int
	// HeaderTimeout, IdleTimeout and HeaderBytes bound a connection without a request in progress.
	HeaderTimeout time.Duration
	IdleTimeout   time.Duration
	HeaderBytes   int
	// Grace is how long open requests, streams and WebSockets may continue after Run's ctx has
	// ended.
	Grace time.Duration
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		Listen: "0.0.0.0:8081", Admin: "127.0.0.1:9081",
		Connections: 10_000, SandboxConnections: 2000, Sandboxes: 100_000,
		HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, HeaderBytes: 64 << 10,
		Grace: 30 * time.Second,
	}
}

// Check returns every rule that the settings break, and normalises the domain.
func (s *Settings) Check() error {
	var problems []error
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		add("--listen: must be a host and a port (got %q)", s.Listen)
	}
	if _, _, err := net.SplitHostPort(s.Admin); s.Admin != "" && err != nil {
		add("--admin: must be a host and a port, or empty (got %q)", s.Admin)
	}
	s.Domain = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(s.Domain, "*."), "."))
	switch s.Mode {
	case ModeWildcard:
		for label := range strings.SplitSeq(s.Domain, ".") {
			if !validID(label) {
				add(
					"--domain: must be the domain below which sandboxes are hosts, without a "+
						"port, such as sandboxes.example.com (got %q)",
					s.Domain)
				break
			}
		}
	case ModeURI, ModeHeader:
		if s.Domain != "" {
			add("--domain: has no meaning in the mode %s", s.Mode)
		}
	case "":
		add("--mode: is required (wildcard, uri or header)")
	default:
		add("--mode: must be wildcard, uri or header (got %q)", s.Mode)
	}
	ways := 0
	for _, way := range []bool{s.Service != "", s.Routes != "", s.Source != nil} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		add("--service, --kubernetes, --routes: exactly one of them is required")
	}
	if u, err := url.Parse(s.Service); s.Service != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		add("--service: must be an http or https URL (got %q)", s.Service)
	}
	for flag, value := range map[string]int64{
		"--max-connections":         int64(s.Connections),
		"--max-sandbox-connections": int64(s.SandboxConnections),
		"--max-sandboxes":           int64(s.Sandboxes),
		"--max-header-bytes":        int64(s.HeaderBytes),
		"--header-timeout":          int64(s.HeaderTimeout),
		"--idle-timeout":            int64(s.IdleTimeout),
	} {
		if value <= 0 {
			add("%s: must be more than 0", flag)
		}
	}
	if s.Grace < 0 {
		add("--grace: must not be negative")
	}
	return errors.Join(problems...)
}
