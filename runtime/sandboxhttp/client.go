// Package sandboxhttp is how programs outside of a sandbox speak HTTP with what is inside one, or in its pod: execd, an egress
// sidecar, a task-executor. Whatever answers there may have been replaced by the sandbox's own program, root included, so its answers
// are bounded, are never followed anywhere else, and none of their bytes get into an error.
//
// [NewClient] is the one constructor of such clients; a test refuses every other. [Proof] is how execd proves who it is.
package sandboxhttp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
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
	// dialTimeout bounds how long a connection may take to be made, and idleTimeout how long it is kept without a request.
	dialTimeout = 5 * time.Second
	idleTimeout = 30 * time.Second
)

// Test for these with errors.Is.
var (
	// ErrNotHTTP: something answered, but not with HTTP. What it said is left out.
	ErrNotHTTP = errors.New("the response is not HTTP")
	// ErrAnswerTooLong: the body of the answer is longer than Options.MaxAnswer. Reading it returns this error at the bound.
	ErrAnswerTooLong = errors.New("the answer is too long")
)

// Options are what clients differ in. The zero value is a client that makes a connection for each request, reads at most
// DefaultMaxAnswer of an answer, and leaves deadlines to the contexts of its requests.
type Options struct {
	// Timeout bounds a whole exchange, the answer's body included; 0 means that only the request's context does.
	Timeout time.Duration
	// HeaderTimeout bounds how long an answer may take to begin; 0 means that only the request's context does.
	HeaderTimeout time.Duration
	// IdleConnections is how many connections are kept for each address; with 0 every request has a connection of its own. Keep none
	// where an address may belong to another sandbox a moment later.
	IdleConnections int
	// EnvironmentProxy uses the proxy that the environment names: for a program that its user starts.
	EnvironmentProxy bool
	// MaxAnswer bounds the body of an answer, in bytes; 0 means DefaultMaxAnswer, and Unbounded is for a body that is passed on
	// while it comes and never held.
	MaxAnswer int64
}

// Unbounded is a value of Options.MaxAnswer.
const Unbounded = -1

// NewClient returns a client for what is inside a sandbox or beside it. It follows no redirection: one is returned as it is, without
// its Location. It keeps no cookies and unpacks nothing. The Status of an answer has the standard's
// words instead of the sender's, and an error holds nothing that the other side has sent.
func NewClient(o Options) *http.Client {
	if o.MaxAnswer == 0 {
		o.MaxAnswer = DefaultMaxAnswer
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	var viaProxy func(*http.Request) (*url.URL, error)
	if o.EnvironmentProxy {
		viaProxy = http.ProxyFromEnvironment
	}
	return &http.Client{
		Timeout: o.Timeout,
		// The transport takes Location away already, so that not even a malformed one is looked at.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &transport{
			maxAnswer: o.MaxAnswer,
			Transport: &http.Transport{
				Proxy:                  viaProxy,
				DialContext:            dialer.DialContext,
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

// tooLarge is what net/http says about a header beyond its limit, which has no type.
var tooLarge = regexp.MustCompile(`server response headers exceeded \d{1,19} bytes; aborted$`)

// Cause returns an error of net/http if it comes from this machine's network or from a limit, and ErrNotHTTP in place of any other: the
// text of net/http quotes what it could not understand of an answer.
func Cause(err error) error {
	if ours(err) {
		return err
	}
	if text := tooLarge.FindString(err.Error()); text != "" {
		return errors.New(text)
	}
	return ErrNotHTTP
}

// ours reports whether an error comes from this machine's network, and not from what it could not understand of an answer.
func ours(err error) bool {
	var network net.Error
	var number syscall.Errno
	return errors.As(err, &network) || errors.As(err, &number) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
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

// Quote returns what may be repeated of a text from the other side where it has to be: why a sidecar or an executor, which are not the
// sandbox's own, refuses a request. That is at most 256 bytes of printable ASCII; every other byte becomes a question mark.
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
