package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"sandbox.internal/internal/forward"
)

const (
	headerRequestID       = "X-Request-ID"
	headerForwardedFor    = "X-Forwarded-For"
	headerForwardedHost   = "X-Forwarded-Host"
	headerForwardedProto  = "X-Forwarded-Proto"
	headerForwardedPrefix = "X-Forwarded-Prefix"
)

var errUnasked = errors.New("the server switches to another protocol without being asked")

// statusClientGone is the log's status for a client that left before the answer.
// No client receives it.
const statusClientGone = 499

// forward sends the request to a port of the sandbox and streams the answer back.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, port int, target *url.URL, prefix string) {
	// Without it net/http reads the rest of the request before it sends the first
	// byte of the answer. A writer that cannot do it works in turns, as before.
	_ = http.NewResponseController(w).EnableFullDuplex()

	// The id of whoever called us stands: the server's own would make a second
	// header, and forwarding an interim response empties the headers.
	id := w.Header().Get(headerRequestID)
	var exchange forward.Exchange
	defer exchange.End()
	proxy := httputil.ReverseProxy{
		Transport:     p.transport,
		FlushInterval: -1,
		ErrorLog:      log.New(p.options.Logger, "", 0),
		Rewrite: func(pr *httputil.ProxyRequest) {
			p.rewrite(pr, port, target, prefix)
			if id != "" {
				pr.Out.Header.Set(headerRequestID, id)
			}
			pr.Out = exchange.Send(pr.In, pr.Out)
		},
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode == http.StatusSwitchingProtocols &&
				!strings.EqualFold(response.Header.Get("Upgrade"), response.Request.Header.Get("Upgrade")) {
				return errUnasked // ReverseProxy would leave the connection open
			}
			exchange.Received(response)
			if id != "" {
				w.Header().Set(headerRequestID, id)
				response.Header.Del(headerRequestID)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			if id != "" {
				w.Header().Set(headerRequestID, id)
			}
			exchange.AnnounceClose(w.Header())
			p.fail(w, r, port, id, &exchange, err)
		},
	}
	proxy.ServeHTTP(responseWriter{w, &exchange}, r)
}

// rewrite makes the request that the server sees. ReverseProxy has taken the
// hop-by-hop headers out before, and puts those of an upgrade back afterwards.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest, port int, target *url.URL, prefix string) {
	address := loopback(port)
	u := *target
	u.Scheme, u.Host = "http", address
	// Opaque goes out untouched, but with two slashes in front it would be taken for
	// a host.
	if raw := rawPath(&u); !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
	}
	pr.Out.URL = &u
	// Development servers accept their local name only, as a guard against DNS
	// rebinding. The name that the client used is in X-Forwarded-Host.
	pr.Out.Host = address

	in, out := pr.In.Header, pr.Out.Header
	for _, name := range []string{p.options.TokenHeader, p.options.KeyHeader} {
		out.Del(name)
		pr.Out.Trailer.Del(name)
	}
	if earlier := in[headerForwardedFor]; earlier != nil {
		out[headerForwardedFor] = earlier
	}
	pr.SetXForwarded()
	// A reverse proxy before this one has the client's own request.
	for _, name := range []string{headerForwardedHost, headerForwardedProto} {
		if earlier := in.Get(name); earlier != "" {
			out.Set(name, earlier)
		}
	}
	out.Del(headerForwardedPrefix)
	if public := publicPrefix(in.Get(headerForwardedPrefix), prefix, port); public != "" {
		out.Set(headerForwardedPrefix, public)
	}
	// What was of the same origin stays so: servers compare Origin with Host before
	// they accept a WebSocket.
	if origin, err := url.Parse(in.Get("Origin")); err == nil && origin.Host != "" && origin.Host == out.Get(headerForwardedHost) {
		out.Set("Origin", "http://"+address)
	}
}

// publicPrefix is the path under which the client sees the port. A reverse proxy before this one
// that names another one than ours takes precedence: it may have taken that off and put
// ours in its place. What it names leads to the first port of the path, which is
// execd itself where a further one follows. One that names the root says that the
// client uses no prefix at all.
func publicPrefix(named, ours string, port int) string {
	last := "/proxy/" + strconv.Itoa(port)
	switch {
	case named == "":
		return ours
	case ours == last:
		return strings.TrimSuffix(named, "/")
	}
	return strings.TrimSuffix(named, "/") + last
}

// fail answers for a server that did not.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, port int, id string, exchange *forward.Exchange, err error) {
	if r.Context().Err() != nil {
		w.WriteHeader(statusClientGone)
		return
	}
	if errors.Is(err, errNotListening) {
		p.options.ErrorBody(w, r, http.StatusBadGateway, CodePortNotListening,
			fmt.Sprintf("no process listens on port %d in the sandbox: start a server there, on 127.0.0.1 or on all addresses, and try again", port))
		return
	}
	if exchange.BodyFailed() {
		p.options.ErrorBody(w, r, http.StatusBadRequest, CodeInvalidBody,
			"body: ended before its announced end, or is malformed")
		return
	}
	p.options.Logger.Warn().Err(err).Int("port", port).Str("request_id", id).Msg("the server behind the proxy did not answer")
	p.options.ErrorBody(w, r, http.StatusBadGateway, CodePortNotAnswering,
		fmt.Sprintf("the server on port %d in the sandbox gave no HTTP/1.1 answer", port))
}

// responseWriter is what net/http's reverse proxy writes the response to.
type responseWriter struct {
	http.ResponseWriter
	exchange *forward.Exchange
}

// Unwrap lets an http.ResponseController through.
func (w responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker].
func (w responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return forward.Hijack(w.ResponseWriter)
}

// WriteHeader implements [http.ResponseWriter].
func (w responseWriter) WriteHeader(status int) { w.exchange.WriteHeader(w.ResponseWriter, status) }
