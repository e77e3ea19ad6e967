package e2b

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

const (
	// daemonPort is the port of E2B's daemon, codePort that of its code interpreter.
	daemonPort, codePort = 49983, 49999

	idHeader    = "E2b-Sandbox-Id"
	portHeader  = "E2b-Sandbox-Port"
	tokenHeader = "X-Access-Token"

	// The headers that execd/e2b reads.
	defaultUserHeader      = "X-E2b-Default-User"
	defaultDirectoryHeader = "X-E2b-Default-Directory"
	sandboxHeader          = "X-E2b-Own-Sandbox"
	templateHeader         = "X-E2b-Own-Template"

	signatureName, expirationName = "signature", "signature_expiration"

	// maxSearches is how many searches for the sandbox of a signature there are at a time.
	maxSearches = 2
)

// destination is what a request to a sandbox names. Without an ID it is the signed URL of a file,
// which names no sandbox.
type destination struct {
	id   string
	port int
}

// destination returns what a request to a sandbox names: by headers, by its host, or by the
// signature of a file.
func (e *Edge) destination(r *http.Request) (destination, bool) {
	if id := r.Header.Get(idHeader); id != "" {
		port := daemonPort
		if text := r.Header.Get(portHeader); text != "" {
			port = parsePort(text)
		}
		return destination{id, port}, true
	}
	if name, ok := e.label(r.Host); ok {
		port, id, _ := strings.Cut(name, "-")
		return destination{id, parsePort(port)}, true
	}
	if r.URL.Path == "/files" && isSignature(r.URL.Query().Get(signatureName)) {
		return destination{"", daemonPort}, true
	}
	return destination{}, false
}

// parsePort returns the number of a port, 0 for a text that is none.
func parsePort(text string) int {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(number)
}

// label returns the first label of a host below the domain.
func (e *Edge) label(host string) (string, bool) {
	if e.Domain == "" {
		return "", false
	}
	domain := bare(e.Domain)
	name, ok := strings.CutSuffix(bare(host), "."+domain)
	return name, ok && !strings.Contains(name, ".") && strings.Contains(name, "-")
}

// bare returns a host without its port and a last dot, in lower case.
func bare(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// enter serves a request to a sandbox.
func (e *Edge) enter(w http.ResponseWriter, r *http.Request, to destination) {
	if to.id == "" {
		refused := e.attempt(r, func() *refusal {
			if id, ok := e.search(r); ok {
				to.id = id
				return nil
			}
			return unauthenticated("signature: is not one for this file, user and operation of a sandbox that runs, or has expired")
		})
		if refused != nil {
			refused.send(w)
			return
		}
	}
	id, ok := internalID(to.id)
	if !ok || to.port == 0 {
		sendUnreachable(w, to.id, "the sandbox was not found")
		return
	}
	if to.port != daemonPort && to.port != codePort {
		e.traffic.ServeHTTP(w, withVisit(r, visit{id, to.port}))
		return
	}
	var token string
	var refused *refusal
	// A client asks with /health whether the sandbox runs, which is no reason to resume it.
	wakes := r.URL.Path != healthPath
	target, unreachable := e.ready(r.Context(), id, wakes, func(target reachable) bool {
		refused = e.attempt(r, func() (failed *refusal) {
			token, failed = tokenFor(r, to.port, target, e.Clock())
			return failed
		})
		return refused == nil
	})
	switch {
	case refused != nil:
		refused.send(w)
	case unreachable != "":
		sendUnreachable(w, to.id, unreachable)
	default:
		out := &unreachableWriter{ResponseWriter: w, id: to.id}
		e.Next.ServeHTTP(out, toExecd(r, id, token, target))
		out.finish()
	}
}

// toExecd returns the request as the service forwards it to the sandbox's execd.
func toExecd(r *http.Request, id, token string, target reachable) *http.Request {
	ours := *r
	query := r.URL.Query()
	query.Del(signatureName)
	query.Del(expirationName)
	ours.URL = &url.URL{Path: "/" + id + "/" + strconv.Itoa(lifecycle.DaemonPort) + "/e2b" + r.URL.Path, RawQuery: query.Encode()}
	ours.RequestURI = ours.URL.RequestURI()
	ours.Header = r.Header.Clone()
	for _, name := range []string{idHeader, portHeader, tokenHeader, reach.KeyHeader, sandboxHeader, templateHeader, defaultUserHeader, defaultDirectoryHeader} {
		ours.Header.Del(name)
	}
	if r.Header.Get(tokenHeader) == "" {
		ours.Header.Del("Authorization") // a signature is for the user that its URL names, and no other
	}
	ours.Header.Set(lifecycle.TokenHeader, token)
	ours.Header.Set(sandboxHeader, externalID(id))
	for name, value := range map[string]string{
		templateHeader: url.PathEscape(target.template), defaultUserHeader: target.user, defaultDirectoryHeader: target.directory,
	} {
		if value != "" {
			ours.Header.Set(name, value)
		}
	}
	return &ours
}
