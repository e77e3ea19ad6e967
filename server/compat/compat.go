// Package compat lets the clients of OpenSandbox use this service: it translates their requests and
// its answers at the edge, so that nothing behind it depends on them. docs/compatibility.md has the
// table of what is translated.
//
// A request is one of theirs when it carries their header for keys, the header that endpoints made
// here ask for, or the User-Agent of their SDKs. Every other request passes unchanged.
package compat

import (
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/reach"
)

const (
	// keyHeader carries the key of a client of OpenSandbox.
	keyHeader = "OPEN-SANDBOX-API-KEY"
	// agentPrefix begins the User-Agent of their SDKs.
	agentPrefix = "OpenSandbox-"
	// dialectHeader, with the value dialect, marks these clients for the sandbox's execd (package
	// execd/compat) and this package. It is one of the headers of an endpoint, which clients send
	// with every request.
	dialectHeader = "X-Sandbox-Dialect"
	dialect       = "opensandbox"
)

const (
	versioned     = "/v1" // begins the paths of the service; these clients may leave it out
	barePath      = "/sandboxes"
	sandboxesPath = versioned + barePath
	metricsPath   = "/v1/metrics/events"
	daemonPort    = "44772"
	egressPort    = "18080"
)

// Options configures an [Edge]. All but the Clock are required.
type Options struct {
	// Next is the service.
	Next http.Handler
	// Admits reports whether the service would accept the key of a request, which is in the header
	// that the service reads. No other request is translated: translation takes memory.
	Admits  func(*http.Request) bool
	Backend Backend
	// Cluster says that the sandboxes are on Kubernetes: there are Pools, and nodes of more than
	// one kind.
	Cluster bool
	// HostNetwork says that the sandboxes share the machine's network, where other machines may
	// reach the ports of their programs directly.
	HostNetwork bool
	Logger      zerolog.Logger
	// Clock returns the present time; nil means time.Now.
	Clock func() time.Time
}

// Edge is the service as clients of OpenSandbox expect it. [Edge.Keep] must run beside it.
type Edge struct {
	Options
	changed chan struct{} // an expiry was set
}

// New returns an Edge.
func New(options Options) *Edge {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	return &Edge{Options: options, changed: make(chan struct{}, 1)}
}

// ServeHTTP implements http.Handler.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case theirs(r):
		e.serve(w, r)
	case isOperation(r.URL.Path) && len(reach.PresentedKeys(r.Header)) == 0:
		// Whoever sends no key may be a client of either kind: the refusal names both headers.
		out := &problemWriter{ResponseWriter: w, translate: func(p problem) problem { return bothKeyHeaders(p) }}
		e.Next.ServeHTTP(out, r)
		out.finish()
	default:
		e.Next.ServeHTTP(w, r)
	}
}

// serve answers a client of OpenSandbox.
func (e *Edge) serve(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get(keyHeader)
	r = withVersion(withServiceKey(r))
	x := &exchange{edge: e, w: w, r: r, key: key}
	if r.URL.Path == metricsPath && r.Method == http.MethodPost {
		// The service does not know the path: it would answer a wrong key 404, and not count it. It
		// decides about what is asked in place of it.
		x.reportMetrics()
		return
	}
	handle := x.route()
	if id, ok := reachedSandbox(r.URL.Path); ok && handle == nil && e.Admits(r) && !x.mayReach(id) {
		return
	}
	if handle == nil || !e.Admits(r) {
		x.pass()
		return
	}
	handle()
}

// theirs reports whether a client of OpenSandbox sends the request. No other client uses the paths
// without a version.
func theirs(r *http.Request) bool {
	return r.Header.Get(keyHeader) != "" || r.Header.Get(dialectHeader) == dialect || strings.HasPrefix(r.UserAgent(), agentPrefix) ||
		isBare(r.URL.Path)
}

// isBare reports whether the path is one of sandboxes or snapshots without a version.
func isBare(path string) bool {
	for _, bare := range []string{barePath, bareSnapshots} {
		if path == bare || strings.HasPrefix(path, bare+"/") {
			return true
		}
	}
	return false
}

// withServiceKey returns the request with the key where the service looks for it. Their header must
// not get through to a sandbox.
func withServiceKey(r *http.Request) *http.Request {
	ours := *r
	ours.Header = r.Header.Clone()
	ours.Header.Del(keyHeader)
	if key := r.Header.Get(keyHeader); key != "" && ours.Header.Get(reach.KeyHeader) == "" {
		ours.Header.Set(reach.KeyHeader, key)
	}
	return &ours
}

// withVersion returns the request with the path that the service has for one without a version.
func withVersion(r *http.Request) *http.Request {
	if path := r.URL.Path; !isBare(path) && path != "/version" {
		return r
	}
	ours, there := *r, *r.URL
	there.Path = versioned + there.Path
	if there.RawPath != "" {
		there.RawPath = versioned + there.RawPath
	}
	ours.URL, ours.RequestURI = &there, there.RequestURI()
	return &ours
}

// isOperation reports whether the path is one of the service's operations on sandboxes, and not a
// port of a sandbox, whose answers are another program's.
func isOperation(path string) bool {
	rest, ok := strings.CutPrefix(path, sandboxesPath)
	if !ok || rest != "" && rest[0] != '/' {
		return false
	}
	parts := strings.SplitN(rest, "/", 4)
	return len(parts) < 3 || parts[2] != "proxy"
}

// route returns what translates the request, nil for what passes as it is.
func (x *exchange) route() func() {
	rest, ok := strings.CutPrefix(x.r.URL.Path, sandboxesPath)
	switch {
	case x.r.URL.RawPath != "":
		return nil
	case ofSnapshots(x.r.URL.Path) && !ok:
		return x.routeSnapshots()
	case !ok:
		return nil
	}
	parts := strings.Split(rest, "/") // the first is empty
	if parts[0] != "" || len(parts) > 1 && parts[1] == "" {
		return nil
	}
	at := x.r.Method + " "
	switch len(parts) {
	case 1:
		return map[string]func(){"POST ": x.create, "GET ": x.list}[at]
	case 2:
		return map[string]func(){"GET ": x.get, "DELETE ": x.remove}[at]
	case 3:
		if parts[2] == "networkpolicy" {
			return func() { x.policy(sandboxesPath + "/" + parts[1] + "/network-policy") }
		}
		return map[string]func(){
			"PATCH metadata": x.patchMetadata, "POST renew-expiration": x.renew, "POST pause": x.act, "POST resume": x.act,
			"POST snapshots": x.takeSnapshot,
		}[at+parts[2]]
	case 4:
		switch at + parts[2] {
		case "GET endpoints":
			return func() { x.endpoint(parts[1], parts[3]) }
		case "GET diagnostics":
			return x.diagnostics(parts[1])[parts[3]]
		}
	case 5:
		if parts[2] == "proxy" && parts[3] == egressPort && parts[4] == "policy" {
			return func() { x.policy(sandboxesPath + "/" + parts[1] + "/network-policy") }
		}
	}
	return nil
}
