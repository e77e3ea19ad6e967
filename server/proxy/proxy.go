// Package proxy sends an HTTP request on to another server and streams the answer
// back. It has no notion of sandboxes: a [Target] says where a request goes, what it
// carries there and what of the answer may come back.
//
// Everything streams in both directions and nothing is buffered, so uploads of any
// size, server-sent events, WebSockets and every other upgrade pass. The path below
// the prefix and the query arrive as the client wrote them. Bodies are never
// rewritten; a server that makes links finds the prefix in X-Forwarded-Prefix.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/internal/forward"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// dialTimeout bounds the connection to a server that is gone.
	dialTimeout = 5 * time.Second
	// pause is after how long a part of a large answer of known length is sent on when the
	// rest does not follow. ReverseProxy sends answers of unknown length on at once.
	pause = 2 * time.Millisecond
	// maxAnswerHeader bounds the header of an answer, in bytes; the rest of an answer has no bound.
	maxAnswerHeader = 256 << 10
)

// The ways in which [Proxy.Forward] fails by itself. Test for them with errors.Is.
var (
	// ErrNotConnected: nothing accepted the connection.
	ErrNotConnected = errors.New("no connection")
	// ErrNoAnswer: the connection brought no HTTP answer. The error quotes nothing of what came.
	ErrNoAnswer = errors.New("no HTTP answer")
	// ErrRequestBody: the client's body broke off or was malformed.
	ErrRequestBody = errors.New("the request's body cannot be read")
)

var errUnasked = errors.New("the server switches to another protocol without being asked")

// Target is where a request goes. Only Address is required.
type Target struct {
	// Address is the server's host and port.
	Address string
	// Path is put before the path of the request: empty, or it begins with a slash and
	// does not end in one.
	Path string
	// Prefix is what the path of the client's request begins with. It is taken off and
	// sent to the server as X-Forwarded-Prefix. Empty, or of the form of Path, and of
	// letters, digits and hyphens alone.
	Prefix string
	// Set holds headers that the request gets, whatever the client sent under these
	// names. Strip names headers that the server must not see.
	Set   map[string]string
	Strip []string
	// Names are the authorities ("127.0.0.1:8000") that the server may take itself for.
	// Redirections to one of them lead back below Prefix.
	Names []string
	// SharedOrigin says that others are served on the host that the client called. The
	// answer then loses what would reach beyond Prefix: see confine.
	SharedOrigin bool
	// SiblingHosts says that others are served on hosts of the same domain. Cookies of the
	// answer then lose their domain, so that they stay on the host that the client called.
	SiblingHosts bool
	// Inspect looks at the answer before any of it is sent on. Forward returns its error instead.
	// It may replace the body.
	Inspect func(*http.Response) error
}

// Proxy forwards requests. It is safe for concurrent use.
type Proxy struct {
	transport  http.RoundTripper
	logger     zerolog.Logger
	complaints *log.Logger // of net/http
	buffers    buffers
}

// New returns a proxy that holds no connection and no goroutine between requests, so
// there is nothing to close. The logger gets what goes wrong in the middle of an answer.
func New(logger zerolog.Logger) *Proxy {
	return newProxy(logger, newTransport())
}

func newProxy(logger zerolog.Logger, transport http.RoundTripper) *Proxy {
	return &Proxy{logger: logger, complaints: log.New(errorLog{logger}, "", 0), transport: transport}
}

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext: dial,
		// Whatever proxy the environment names, targets are reached directly.
		Proxy: nil,
		// A client that asks before it sends a large body (Expect: 100-continue) gets the
		// server's answer, or goes ahead when the server has none.
		ExpectContinueTimeout: time.Second,
		// A connection that is kept would fail the next upload when the server behind it
		// was restarted meanwhile, and the address may belong to another one by then.
		DisableKeepAlives: true,
		// Else the transport asks for gzip on its own and unpacks it.
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	return forward.NewConn(conn), nil
}

// Forward sends r to the target and the answer to w. It returns an error only while
// nothing of an answer has been sent: one of this package's, that of Target.Inspect,
// or the cause of r's context when that has ended. An answer that breaks off later
// ends in a panic with [http.ErrAbortHandler], so that the client notices.
//
// The server may answer before it has read the body. Then Forward returns once the answer is sent,
// and the rest of the body stays unread: the server of r must not take it for another request,
// which [sandbox.internal/openapi/serve/listen.ForwardBody] has it do.
func (p *Proxy) Forward(w http.ResponseWriter, r *http.Request, target Target) error {
	below, err := withoutPrefix(r.URL, target.Prefix)
	if err != nil {
		return err
	}
	var exchange forward.Exchange
	defer exchange.End()
	to := newAnswer(w, r, target.SharedOrigin, &exchange)
	// Without it net/http reads the rest of the request before it sends the first byte of
	// the answer. A writer that cannot do it works in turns, as before.
	_ = to.controller.EnableFullDuplex()

	var failure error
	var reverse httputil.ReverseProxy
	reverse = httputil.ReverseProxy{
		Transport:     p.transport,
		FlushInterval: pause,
		BufferPool:    &p.buffers,
		ErrorLog:      p.complaints,
		Rewrite: func(pr *httputil.ProxyRequest) {
			rewrite(pr, target, below)
			pr.Out = exchange.Send(pr.In, pr.Out)
		},
		ModifyResponse: func(response *http.Response) error {
			if switchesUnasked(response) {
				return errUnasked
			}
			exchange.Received(response)
			if target.Inspect != nil {
				if err := target.Inspect(response); err != nil {
					return &inspectedError{err}
				}
			}
			to.restore(response.Header)
			if length := response.ContentLength; length >= 0 && length <= bufferSize {
				reverse.FlushInterval, to.length = 0, length
			}
			withoutCommands(response.Header)
			redirect(response.Header, r, target)
			switch {
			case target.SharedOrigin:
				confine(response, r, target)
			case target.SiblingHosts:
				keepToHost(response.Header)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failure = err },
	}
	reverse.ServeHTTP(to, r)
	if failure == nil {
		if !to.taken {
			// What is left goes out before the layers around us write their logs. A client that
			// is gone by now is no news.
			_ = to.FlushError()
		}
		return nil
	}
	if to.taken {
		// The connection is no longer net/http's: nothing can be answered on it.
		p.logger.Warn().Err(sandboxhttp.Cause(failure)).Msg("connection of an upgraded protocol broke off")
		panic(http.ErrAbortHandler)
	}
	to.restore(nil)
	exchange.AnnounceClose(to.Header())
	return explain(r, &exchange, failure)
}

// switchesUnasked reports whether an answer switches to another protocol than the request asks for.
// ReverseProxy refuses that, too, but leaves the connection open.
func switchesUnasked(response *http.Response) bool {
	return response.StatusCode == http.StatusSwitchingProtocols &&
		!strings.EqualFold(response.Header.Get("Upgrade"), response.Request.Header.Get("Upgrade"))
}

// inspectedError is an error of Target.Inspect on its way through ReverseProxy.
type inspectedError struct{ error }

// explain gives a failure its kind.
func explain(r *http.Request, exchange *forward.Exchange, failure error) error {
	var inspected *inspectedError
	switch {
	case r.Context().Err() != nil:
		return context.Cause(r.Context())
	case errors.As(failure, &inspected):
		return inspected.error
	case errors.Is(failure, ErrNotConnected):
		return failure
	case exchange.BodyFailed():
		return fmt.Errorf("%w: %w", ErrRequestBody, failure)
	}
	if !errors.Is(failure, errUnasked) {
		failure = sandboxhttp.Cause(failure)
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, failure)
}

// rewrite makes the request that the server sees. ReverseProxy has taken the
// hop-by-hop headers out before, and puts those of an upgrade back.
func rewrite(pr *httputil.ProxyRequest, target Target, below *url.URL) {
	u := below // of this request alone
	u.Scheme, u.Host, u.User = "http", target.Address, nil
	// Opaque goes out untouched, but with two slashes in front it would be taken for a
	// host.
	raw := target.Path + rawPath(u)
	u.Path, u.RawPath = target.Path+u.Path, raw
	if !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
	}
	pr.Out.URL = u
	pr.Out.Host = target.Address

	in, out := pr.In.Header, pr.Out.Header
	if earlier := in["X-Forwarded-For"]; earlier != nil {
		out["X-Forwarded-For"] = earlier
	}
	pr.SetXForwarded()
	// A reverse proxy before this one has the client's own request.
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if earlier := in.Get(name); earlier != "" {
			out.Set(name, earlier)
		}
	}
	out.Del("X-Forwarded-Prefix")
	switch {
	case target.Prefix != "":
		out.Set("X-Forwarded-Prefix", target.Prefix)
	case target.Path != "":
		// Whoever takes Path off again must not take it for what the client wrote.
		out.Set("X-Forwarded-Prefix", "/")
	}
	for _, name := range target.Strip {
		out.Del(name)
		pr.Out.Trailer.Del(name)
	}
	for name, value := range target.Set {
		out.Set(name, value)
	}
}

// rawPath is the path as the client wrote it. net/url keeps it only where its own way
// of escaping would give something else, and EscapedPath alone would still repair
// characters that do not belong in a URL, such as |.
func rawPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// withoutPrefix is u below prefix, which holds no escaped character and therefore has
// the same length in both forms of the path.
func withoutPrefix(u *url.URL, prefix string) (*url.URL, error) {
	if !under(rawPath(u), prefix) || !strings.HasPrefix(u.Path, prefix) {
		return nil, fmt.Errorf("proxy: path %q is not below %q", u.Path, prefix)
	}
	below := *u
	below.Path = u.Path[len(prefix):]
	if u.RawPath != "" {
		below.RawPath = u.RawPath[len(prefix):]
	}
	if below.Path == "" {
		below.Path, below.RawPath = "/", ""
	}
	return &below, nil
}

// under reports whether a path is the prefix or lies below it.
func under(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/' || prefix == "")
}

// errorLog takes the complaints of net/http, which are about single answers.
type errorLog struct{ logger zerolog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	l.logger.Debug().Str("source", "net/http").Msg(strings.TrimSpace(string(line)))
	return len(line), nil
}
