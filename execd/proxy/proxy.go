// Package proxy reaches any TCP port of the sandbox through execd: what comes for
// /proxy/{port}/... goes to the HTTP server that listens on that port of the
// loopback interface.
//
// Everything streams in both directions and nothing is buffered or timed out, so
// uploads of any size, server-sent events and WebSockets pass. The path and the
// query reach the server as the client wrote them, without the prefix. The server
// learns the prefix from X-Forwarded-Prefix: what it answers, absolute paths in
// Location headers and in pages included, passes unchanged.
package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
)

// Codes of the errors that the proxy answers itself.
const (
	CodeInvalidPort      = "INVALID_PORT"         // 400: the port breaks the rule that the message names
	CodeInvalidBody      = "INVALID_REQUEST_BODY" // 400: the client's body broke off or is malformed
	CodeProxyLoop        = "PROXY_LOOP"           // 400: execd's own port, through execd's own port
	CodePortNotListening = "PORT_NOT_LISTENING"   // 502: nothing listens on the port
	CodePortNotAnswering = "PORT_NOT_ANSWERING"   // 502: something listens, but gave no HTTP/1.1 answer
)

// Options are what a proxy needs. All fields but Logger are required.
type Options struct {
	// Self serves requests for SelfPorts, which stand for execd itself, without a hop.
	// It sees the request without the prefix and with its token, and authenticates
	// it as any other.
	Self      http.Handler
	SelfPorts []int
	// TokenHeader carries the token of execd. It is for execd alone: a server in the
	// sandbox never sees it.
	TokenHeader string
	// KeyHeader carries the name of the API key that a request to execd came with. It is for execd
	// alone, too.
	KeyHeader string
	Logger    zerolog.Logger
	// ErrorBody answers with an error in the way of the service.
	ErrorBody func(w http.ResponseWriter, r *http.Request, status int, code, message string)
}

// Proxy is the handler of /proxy/{port} and everything below it. The caller has
// authenticated the request.
type Proxy struct {
	options   Options
	transport http.RoundTripper
}

// New returns a proxy. It holds no connection and no goroutine between requests, so
// there is nothing to close.
func New(options Options) *Proxy {
	return &Proxy{options: options, transport: newTransport()}
}

// prefixKey finds the prefix under which a request already came to Self.
type prefixKey struct{}

// ServeHTTP sends the request on to the port that its path names.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	segment, _, _ := strings.Cut(strings.TrimPrefix(rawPath(r.URL), "/proxy/"), "/")
	port, err := parsePort(segment)
	if err != nil {
		p.options.ErrorBody(w, r, http.StatusBadRequest, CodeInvalidPort, err.Error())
		return
	}
	prefix := "/proxy/" + segment
	target := withoutPrefix(r.URL, prefix)
	outer, nested := r.Context().Value(prefixKey{}).(string)
	if !slices.Contains(p.options.SelfPorts, port) {
		p.forward(w, r, port, target, outer+prefix)
		return
	}
	// One pass is of use (an endpoint of execd, with a further port behind it). More
	// would let a single long path recurse as often as it likes.
	if nested {
		p.options.ErrorBody(w, r, http.StatusBadRequest, CodeProxyLoop,
			fmt.Sprintf("port %d is execd itself and this path goes through it already: leave out the second %s", port, prefix))
		return
	}
	own := r.WithContext(context.WithValue(r.Context(), prefixKey{}, prefix))
	own.URL = target
	p.options.Self.ServeHTTP(w, own)
}

// parsePort reads a port. A second way to write the same port is refused, because
// the server behind would see another prefix than the one its links are made for.
func parsePort(segment string) (int, error) {
	port, err := strconv.ParseUint(segment, 10, 16)
	if err != nil || port == 0 || segment[0] == '0' {
		return 0, fmt.Errorf("path parameter port: must be a decimal number from 1 to 65535 without leading zeros, not %q", segment)
	}
	return int(port), nil
}

// rawPath is the path as the client wrote it. net/url keeps it only where its own
// way of escaping would give something else, and EscapedPath alone would still
// repair characters that do not belong in a URL, such as |.
func rawPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// withoutPrefix is u below prefix, which holds no escaped character and therefore has
// the same length in both forms of the path.
func withoutPrefix(u *url.URL, prefix string) *url.URL {
	below := *u
	below.Path = u.Path[len(prefix):]
	if u.RawPath != "" {
		below.RawPath = u.RawPath[len(prefix):]
	}
	if below.Path == "" {
		below.Path, below.RawPath = "/", ""
	}
	return &below
}
