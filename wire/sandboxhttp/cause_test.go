package sandboxhttp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"sandbox.internal/wire/sandboxhttp"
)

// certified starts a TLS server whose certificate is for a name and a time. It returns its address,
// and a pool that trusts it.
func certified(t *testing.T, name string, from, until time.Time) (string, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "STOLEN"}, DNSNames: []string{name, "STOLEN.example"},
		NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(name); ip != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), pool
}

// TestCertificates: each way in which a certificate is not trusted is said, without a byte of what
// it says.
func TestCertificates(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		host        string
		from, until time.Time
		trusted     bool
		says        string
	}{
		"unsigned":      {"127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour), false, "signed by an authority that this machine does not know"},
		"of another":    {"other.example", now.Add(-time.Hour), now.Add(time.Hour), true, "it is not for the name 127.0.0.1"},
		"expired":       {"127.0.0.1", now.Add(-2 * time.Hour), now.Add(-time.Hour), true, "it has expired, at 2"},
		"not yet valid": {"127.0.0.1", now.Add(time.Hour), now.Add(2 * time.Hour), true, "it is valid only from 2"},
	} {
		t.Run(name, func(t *testing.T) {
			address, pool := certified(t, test.host, test.from, test.until)
			config := &tls.Config{RootCAs: x509.NewCertPool()}
			if test.trusted {
				config.RootCAs = pool
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: time.Minute}
			_, err := client.Get("https://" + address)
			if err == nil {
				t.Fatal("the certificate is trusted")
			}
			err = sandboxhttp.Cause(errors.Unwrap(err)) // what a transport of ours does
			if !errors.Is(err, sandboxhttp.ErrCertificate) || !sandboxhttp.Permanent(err) || !strings.Contains(err.Error(), test.says) ||
				strings.Contains(err.Error(), "STOLEN") {
				t.Errorf("the error is %q, want %q", err, test.says)
			}
		})
	}
	address, _ := certified(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour))
	_, err := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute}).Get("https://" + address)
	if !errors.Is(err, sandboxhttp.ErrCertificate) {
		t.Errorf("a client of ours: %v", err)
	}
}

// TestCauses: each failure has its own words.
func TestCauses(t *testing.T) {
	client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute})
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	https := func(url string) string { return strings.Replace(url, "http://", "https://", 1) }
	for name, test := range map[string]struct {
		url  string
		kind error
		says string
	}{
		"TLS to a server without":         {https(plain.URL), sandboxhttp.ErrNoTLS, "should begin with http://"},
		"TLS to something else":           {https(hostile(t, "220 mail STOLEN\r\n")), sandboxhttp.ErrNoTLS, ""},
		"an alert of TLS without it":      {hostile(t, "\x15\x03\x01\x00\x02\x02\x46"), sandboxhttp.ErrNeedsTLS, "should begin with https://"},
		"a handshake record of TLS":       {hostile(t, "\x16\x03\x03\x00\x04STOLEN\r\n\r\n"), sandboxhttp.ErrNeedsTLS, ""},
		"not HTTP":                        {hostile(t, "220 mail STOLEN\r\n\r\n"), sandboxhttp.ErrNotHTTP, ""},
		"nothing listens":                 {"http://" + closed.Addr().String(), nil, "connection refused"},
		"no such name":                    {"http://name.invalid", nil, "name.invalid"},
		"an alert for a handshake of TLS": {https(hostile(t, "\x15\x03\x03\x00\x02\x02\x28")), nil, "handshake failure"},
		"cut in a handshake":              {https(hostile(t, "")), nil, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Get(test.url)
			if err == nil || test.kind != nil && !errors.Is(err, test.kind) || test.kind == nil && errors.Is(err, sandboxhttp.ErrNotHTTP) ||
				!strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "STOLEN") {
				t.Errorf("the error is %v, want %v and %q", err, test.kind, test.says)
			}
		})
	}
	patient := sandboxhttp.NewClient(sandboxhttp.Options{HeaderTimeout: 50 * time.Millisecond})
	if _, err := patient.Get("http://" + silent.Addr().String()); err == nil || !strings.Contains(err.Error(), "timeout awaiting response headers") {
		t.Errorf("no answer: %v", err)
	}
}

// TestProxyThatRefuses: the answer of a proxy to CONNECT is said in words of ours.
func TestProxyThatRefuses(t *testing.T) {
	var proxy *sandboxhttp.ProxyError
	for answer, says := range map[string]string{
		"HTTP/1.1 403 STOLEN\r\n\r\n": "403 Forbidden", "HTTP/1.1 407 STOLEN\r\n\r\n": "407 Proxy Authentication Required",
	} {
		err := sandboxhttp.Cause(throughProxy(t, hostile(t, answer)))
		if !errors.As(err, &proxy) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "STOLEN") {
			t.Errorf("the error is %v, want %q", err, says)
		}
	}
}

// throughProxy returns the error of a request through the proxy at a URL, whose answers are checked
// as a client of ours does: the environment, which names its proxy, is read once for each process.
func throughProxy(t *testing.T, at string) error {
	t.Helper()
	address, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{Proxy: http.ProxyURL(address), OnProxyConnectResponse: sandboxhttp.Connected, DisableKeepAlives: true}}
	_, err = client.Get("https://service.example")
	return errors.Unwrap(err)
}
