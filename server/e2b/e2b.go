// Package e2b lets the clients of E2B use this service: it answers what they send to E2B's API and
// to the daemon in its sandboxes. Requests to the API become requests to this service, with its
// authentication, rules and limits; requests to a sandbox go to its execd, whose package execd/e2b
// answers them. docs/e2b.md has how clients are configured and what differs.
package e2b

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
)

// Options configures an [Edge]. All but Domain, HostNetwork and Clock are required.
type Options struct {
	// Next is the service itself.
	Next http.Handler
	// Admits reports whether the service would accept the key of a request. No other request is
	// translated: translation takes memory.
	Admits func(*http.Request) bool
	// Attempt runs a check of something that takes the place of a key, as [serve.Server.Attempt].
	Attempt func(r *http.Request, check func() error) error
	// IsKey reports whether a text is an API key, which no program in a sandbox may get.
	IsKey   func(text string) bool
	Backend lifecycle.Backend
	// Sleeper wakes sandboxes that sleep by the settings of their lifecycle; nil when the backend
	// has no such ability.
	Sleeper lifecycle.Sleeper
	// Suspend pauses a sandbox without its memory; nil where the backend cannot.
	Suspend func(ctx context.Context, id string) error
	// MaxTimeout returns the longest timeout that a key allows, by the name of the key.
	MaxTimeout func(owner string) time.Duration
	Templates  Templates
	// Domain is the domain of the hosts PORT-ID.DOMAIN, with a port where clients need one; empty
	// where there are none.
	Domain string
	// HostNetwork says that sandboxes share the network of the machine: their ports are its own, so
	// all of them need the traffic token.
	HostNetwork bool
	Logger      zerolog.Logger
	// Clock returns the present time; nil means time.Now.
	Clock func() time.Time
}

// Edge is the service as clients of E2B expect it. [Edge.Keep] must run beside it.
type Edge struct {
	Options
	deadlines deadlines
	proxy     *proxy.Proxy
	traffic   *serve.Server
	searches  chan struct{} // has one element for each search by signature
}

// New returns an Edge.
func New(options Options) (*Edge, error) {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	e := &Edge{
		Options: options, deadlines: newDeadlines(), proxy: proxy.New(options.Logger), searches: make(chan struct{}, maxSearches),
	}
	var err error
	e.traffic, err = e.trafficServer()
	return e, err
}

// Before returns a handler that answers the requests of E2B's clients, and has others answer the
// rest.
func (e *Edge) Before(others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to, ok := e.destination(r); ok {
			e.enter(w, r, to)
			return
		}
		if isOthers(r) || !isAPI(r.URL.Path) {
			others.ServeHTTP(w, r)
			return
		}
		e.serveAPI(w, r)
	})
}

// isOthers reports whether the request is one of a client of OpenSandbox, whose paths without a
// version are the same.
func isOthers(r *http.Request) bool {
	return r.Header.Get("OPEN-SANDBOX-API-KEY") != "" || r.Header.Get("X-Sandbox-Dialect") != "" ||
		strings.HasPrefix(r.UserAgent(), "OpenSandbox-")
}

// resources begin the paths of E2B's API, with or without a version before them.
var resources = map[string]bool{
	"access-tokens": true, "api-keys": true, "nodes": true, "sandboxes": true, "secrets": true, "snapshots": true, "teams": true,
	"templates": true, "volumecontent": true, "volumes": true,
}

// isAPI reports whether the path is one of E2B's API.
func isAPI(path string) bool {
	first, _, _ := strings.Cut(withoutVersion(path)[1:], "/")
	return resources[first]
}

// withoutVersion returns the path without the version that E2B's newer operations have: the
// operations of one name take what those of every version send.
func withoutVersion(path string) string {
	for _, version := range []string{"/v2/", "/v3/"} {
		if rest, ok := strings.CutPrefix(path, version); ok {
			return "/" + rest
		}
	}
	if path == "" {
		return "/"
	}
	return path
}
