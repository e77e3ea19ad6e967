package sandboxhttp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Test for these with errors.Is.
var (
	// ErrNotHTTP: something answered, but not with HTTP. The bytes of the response are left out.
	ErrNotHTTP = errors.New("the response is not HTTP")
	// ErrAnswerTooLong: the body of the answer is longer than Options.MaxAnswer. Reading it returns
	// this error at the bound.
	ErrAnswerTooLong = errors.New("the answer is too long")
	// ErrCertificate: the certificate of the server is not one that this machine trusts for its
	// name and at this time. The text of the error that wraps it says why.
	ErrCertificate = errors.New("the certificate of the server is not trusted")
	// ErrNoTLS: the URL asks for TLS, and the server answers without it.
	ErrNoTLS = errors.New("the server does not speak TLS: the URL should begin with http://, not https://")
	// ErrNeedsTLS: the URL asks for no TLS, and the server answers with a TLS record.
	ErrNeedsTLS = errors.New("the server speaks TLS: the URL should begin with https://, not http://")
	// ErrTLS: the TLS handshake failed for another reason, which the other side has a part in.
	ErrTLS = errors.New("the TLS handshake failed")
	// ErrProxyAddress: a proxy that the environment names has no valid address.
	ErrProxyAddress = errors.New("the environment variable HTTP_PROXY or HTTPS_PROXY is not the URL of a proxy, such as http://proxy:3128")
	// ErrExchange: the exchange failed, and why cannot be repeated.
	ErrExchange = errors.New("the request failed")
)

// ProxyError is the answer of a proxy that does not connect to the server.
type ProxyError struct{ Status int }

// Error implements error.
func (e *ProxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the proxy of the environment refuses to connect to the server: %d %s", e.Status, http.StatusText(e.Status)))
}

// Permanent reports whether a request that failed with this error fails the same way when it is
// sent again: the URL, the certificate or the proxy's address has to change first.
func Permanent(err error) bool {
	for _, kind := range []error{ErrCertificate, ErrNoTLS, ErrNeedsTLS, ErrProxyAddress} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

var (
	// tooLarge is what net/http says about a header beyond its limit, which has no type.
	tooLarge = regexp.MustCompile(`server response headers exceeded \d{1,19} bytes; aborted$`)
	// tlsRecord is how net/http quotes an answer that is an alert or a handshake record of TLS.
	tlsRecord = regexp.MustCompile(`malformed HTTP response "\\x1[56]\\x03`)
	// notHTTP is what net/http says about an answer that it cannot parse, which has no type either.
	notHTTP = regexp.MustCompile(`malformed|HTTP/1\.x transport connection broken|too many 1xx|bad Content-Length|` +
		`(multiple|invalid empty) Content-Length|(unsupported|too many) transfer encoding|chunked|bad trailer key`)
	// wrongLength is a body of ours that is not as long as its request says.
	wrongLength = regexp.MustCompile(`http: ContentLength=-?\d{1,19} with Body length \d{1,19}$`)
)

// Cause returns an error of net/http without what the other side has sent: the text of net/http
// quotes what it could not understand of an answer, and the names in a certificate. An error from
// this machine's network or from a limit is returned as it is, and one that this package knows has
// words of its own; [ErrNotHTTP] stands for an answer that cannot be parsed, and [ErrExchange] for
// the rest.
func Cause(err error) error {
	if known := certificate(err); known != nil {
		return known
	}
	var proxy *ProxyError
	var record tls.RecordHeaderError
	text := err.Error()
	switch {
	case errors.As(err, &proxy):
		return proxy
	case errors.Is(err, ErrProxyAddress):
		return ErrProxyAddress
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return ErrNoTLS
	case ours(err):
		return err
	case tooLarge.MatchString(text):
		return errors.New(tooLarge.FindString(text))
	case wrongLength.MatchString(text):
		return errors.New(wrongLength.FindString(text))
	case tlsRecord.MatchString(text):
		return ErrNeedsTLS
	case strings.Contains(text, "tls: ") || strings.Contains(text, "x509: "):
		return ErrTLS
	case notHTTP.MatchString(text):
		return ErrNotHTTP
	}
	return ErrExchange
}

// certificate returns why a certificate is not trusted, in words that have nothing of the
// certificate but its times; nil when err is about something else.
func certificate(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		failed  *tls.CertificateVerificationError
		roots   x509.SystemRootsError
	)
	why := ""
	switch {
	case errors.As(err, &roots):
		why = "this machine's certificates of authorities cannot be read"
	case errors.As(err, &unknown):
		why = "it is signed by an authority that this machine does not know; add the authority's certificate to this machine's, " +
			"or name a file that has it in SSL_CERT_FILE"
	case errors.As(err, &host):
		why = "it is not for the name " + host.Host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		why = validity(invalid.Cert, time.Now())
	case errors.As(err, &invalid), errors.As(err, &failed):
		why = "it does not follow the rules for certificates of servers"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrCertificate, why)
}

// validity says when a certificate is valid.
func validity(c *x509.Certificate, now time.Time) string {
	if c != nil && now.Before(c.NotBefore) {
		return "it is valid only from " + c.NotBefore.UTC().Format(time.RFC3339) + " on; is this machine's clock right?"
	}
	if c != nil {
		return "it has expired, at " + c.NotAfter.UTC().Format(time.RFC3339)
	}
	return "it has expired"
}

// ours reports whether an error comes from this machine's network, and not from what it could not
// understand of an answer.
func ours(err error) bool {
	var network net.Error
	var number syscall.Errno
	var body *http.MaxBytesError
	return errors.As(err, &network) || errors.As(err, &number) || errors.As(err, &body) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
