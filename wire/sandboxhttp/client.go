// Package sandboxhttp is how programs outside of a sandbox speak HTTP with what is inside one, or
// in its pod: execd, an egress sidecar, a task-executor. The sandbox's own program, root included,
// may have replaced the server there, so responses are bounded, redirections are not followed, and
// no bytes of a response get into an error.
//
// [NewClient] is the one constructor of such clients; a test refuses every other. [Proof] is how
// execd proves who it is.
package sandboxhttp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// DefaultMaxAnswer is the bound of an answer's body where Options.MaxAnswer is 0, in bytes.
	DefaultMaxAnswer = 64 << 10
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 32 << 10
	// dialTimeout bounds how long a connection may take to be made, tlsTimeout how long its TLS
	// handshake may take after that, and idleTimeout how long it is kept without a request.
	dialTimeout = 5 * time.Second
	tlsTimeout  = 10 * time.Second
	idleTimeout = 30 * time.Second
)

// Options are what clients differ in. The zero value is a client that makes a connection for each
// request, reads at most DefaultMaxAnswer of an answer, and leaves deadlines to the contexts of its
// requests.
type Options struct {
	// Timeout bounds a whole exchange, the answer's body included; 0 means that only the request's
	// context does.
	Timeout time.Duration
	// HeaderTimeout bounds how long an answer may take to begin; 0 means that only the request's
	// context does.
	HeaderTimeout time.Duration
	// IdleConnections is how many connections are kept for each address; with 0 every request has a
	// connection of its own. Keep none where an address may belong to another sandbox a moment
	// later.
	IdleConnections int
	// EnvironmentProxy uses the proxy that the environment names: for a program that its user
	// starts.
	EnvironmentProxy bool
	// MaxAnswer bounds the body of an answer, in bytes; 0 means DefaultMaxAnswer, and Unbounded is
	// for a body that is passed on while it comes and never held.
	MaxAnswer int64
	// Admit, if not nil, refuses addresses: its error is that of the connection. It gets what the
	// name of the URL was resolved to, right before the connection is made. It may not be combined
	// with EnvironmentProxy, which would connect instead.
	Admit func(address netip.AddrPort) error
}

// Unbounded is a value of Options.MaxAnswer.
const Unbounded = -1

// NewClient returns a client for what is inside a sandbox or beside it. It follows no redirection:
// one is returned as it is, without its Location. It keeps no cookies and unpacks nothing. The
// Status of an answer has the standard's words instead of the sender's, and an error holds nothing
// that the other side has sent.
func NewClient(o Options) *http.Client {
	if o.MaxAnswer == 0 {
		o.MaxAnswer = DefaultMaxAnswer
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	if o.Admit != nil {
		dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			resolved, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return o.Admit(resolved)
		}
	}
	var viaProxy func(*http.Request) (*url.URL, error)
	if o.EnvironmentProxy {
		viaProxy = environmentProxy
	}
	return &http.Client{
		Timeout: o.Timeout,
		// The transport takes Location away already, so that not even a malformed one is looked at.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &transport{
			maxAnswer: o.MaxAnswer,
			Transport: &http.Transport{
				Proxy:                  viaProxy,
				OnProxyConnectResponse: connected,
				DialContext:            dialer.DialContext,
				TLSHandshakeTimeout:    tlsTimeout,
				DisableKeepAlives:      o.IdleConnections == 0,
				MaxIdleConnsPerHost:    o.IdleConnections,
				IdleConnTimeout:        idleTimeout,
				ResponseHeaderTimeout:  o.HeaderTimeout,
				MaxResponseHeaderBytes: maxHeader,
				// Else a few bytes could become as many as they like.
				DisableCompression: true,
			},
		},
	}
}

// environmentProxy is http.ProxyFromEnvironment with an error of our own: that of net/http has the
// variable's value, which may have a password.
func environmentProxy(r *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, ErrProxyAddress
	}
	return proxy, nil
}

// connected refuses a proxy's answer to CONNECT that is no success, in words of our own.
func connected(_ context.Context, _ *url.URL, _ *http.Request, response *http.Response) error {
	if response.StatusCode == http.StatusOK {
		return nil
	}
	return &ProxyError{Status: response.StatusCode}
}

// transport takes out of answers what a caller could be misled by.
type transport struct {
	*http.Transport // CloseIdleConnections is its own
	maxAnswer       int64
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.Transport.RoundTrip(r)
	if err != nil {
		if r.Context().Err() != nil {
			return nil, err
		}
		return nil, Cause(err)
	}
	if response.StatusCode/100 == 3 {
		response.Header.Del("Location")
	}
	response.Status = strconv.Itoa(response.StatusCode)
	if text := http.StatusText(response.StatusCode); text != "" {
		response.Status += " " + text
	}
	if t.maxAnswer != Unbounded && response.StatusCode != http.StatusSwitchingProtocols {
		response.Body = &bounded{ReadCloser: response.Body, left: t.maxAnswer}
	}
	return response, nil
}

// bounded is a body that ends with an error when it is longer than it may be.
type bounded struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, ErrAnswerTooLong
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one byte more, to find out whether there is more
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, ErrAnswerTooLong
	}
	if err != nil && err != io.EOF && !ours(err) {
		err = fmt.Errorf("the body of the answer: %w", ErrNotHTTP) // malformed chunks
	}
	return n, err
}

// maxQuote is how much of a text of the other side may be repeated, in bytes.
const maxQuote = 256

// Quote returns what may be repeated of a text from the other side where it has to be: why a
// sidecar or an executor, which are not the sandbox's own, refuses a request. The result is at most
// 256 bytes of printable ASCII; every other byte becomes a question mark.
func Quote(text string) string {
	if len(text) > maxQuote {
		text = text[:maxQuote] + "..."
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text)
}
