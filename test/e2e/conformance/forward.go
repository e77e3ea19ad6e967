package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http/httpproxy"

	"sandbox.internal/test/reverse"
)

const (
	// proxyDomain is known to the proxy of Forward alone: a client that connects directly finds
	// nothing.
	proxyDomain = ".sandbox.test"
	// The password has what must be encoded in a URL.
	proxyUser, proxyPassword = "user", "p@ss:w/ord"
)

// forward is an HTTP proxy with a password. All names below proxyDomain are one service, at port 80
// without TLS and at port 443 with it.
type forward struct {
	plain, secure *httptest.Server // the service
	through       http.Handler     // to the service without TLS
	mu            sync.Mutex
	counts        map[string]*forwarded // by host
}

// forwarded is what the proxy has seen of one host, and the service under that name.
type forwarded struct {
	Requests int `json:"requests"` // in absolute form
	Connects int `json:"connects"`
	Refused  int `json:"refused"`
	Leaked   int `json:"leaked"` // requests to the service that have the proxy's password
}

// Forward starts a proxy, without TLS and with it, in front of a service and returns the variables
// that say where it is. `GET /counts?host=NAME` of the proxy itself returns what it has seen.
func Forward(t *testing.T, service string) []string {
	t.Helper()
	target, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	certificate := selfSigned(t, "*"+proxyDomain)
	transport := &http.Transport{}
	f := &forward{counts: map[string]*forwarded{}}
	onward := reverse.Handler(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "" {
			f.count(r.Host, func(c *forwarded) { c.Leaked++ })
		}
		onward.ServeHTTP(w, r)
	})
	serve := func(handler http.Handler, secure bool) *httptest.Server {
		server := httptest.NewUnstartedServer(handler)
		if secure {
			server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		return server
	}
	t.Cleanup(transport.CloseIdleConnections)
	f.plain, f.secure = serve(front, false), serve(front, true)
	f.through = reverse.Handler(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Host = f.plain.Listener.Addr().String() }})
	directory := t.TempDir()
	Write(t, directory, "ca.pem", string(pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})))
	Write(t, directory, "cases.json", proxyCases(t))
	return []string{
		"PROXY_URL=" + serve(f, false).URL, "PROXY_TLS_URL=" + serve(f, true).URL,
		"PROXY_USER=" + proxyUser, "PROXY_PASSWORD=" + proxyPassword,
		"PROXY_CA=" + filepath.Join(directory, "ca.pem"), "PROXY_CASES=" + filepath.Join(directory, "cases.json"),
	}
}

func (f *forward) count(host string, add func(*forwarded)) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts[host] == nil {
		f.counts[host] = &forwarded{}
	}
	add(f.counts[host])
}

func (f *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect && !r.URL.IsAbs() {
		f.count(r.URL.Query().Get("host"), func(c *forwarded) { _ = json.NewEncoder(w).Encode(c) })
		return
	}
	user, password, _ := (&http.Request{Header: http.Header{
		"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
	if user != proxyUser || password != proxyPassword {
		f.count(r.Host, func(c *forwarded) { c.Refused++ })
		w.Header().Set("Proxy-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	name, port, _ := strings.Cut(r.Host, ":")
	switch {
	case !strings.HasSuffix(name, proxyDomain):
		w.WriteHeader(http.StatusForbidden)
	case r.Method != http.MethodConnect:
		f.count(r.Host, func(c *forwarded) { c.Requests++ })
		f.through.ServeHTTP(w, r)
	case port == "443":
		f.connect(w, r, f.secure)
	default:
		f.connect(w, r, f.plain)
	}
}

// connect passes bytes on until one side ends.
func (f *forward) connect(w http.ResponseWriter, r *http.Request, to *httptest.Server) {
	f.count(r.Host, func(c *forwarded) { c.Connects++ })
	server, err := net.Dial("tcp", to.Listener.Addr().String())
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	client, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		_ = server.Close()
		return
	}
	_, _ = io.WriteString(client, "HTTP/1.1 200 Connected\r\n\r\n")
	pass := func(to, from net.Conn, source io.Reader) {
		_, _ = io.Copy(to, source)
		_, _ = to.Close(), from.Close()
	}
	go pass(server, client, buffered)
	go pass(client, server, server)
}

// selfSigned is a certificate for a name and this machine that is its own authority.
func selfSigned(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// proxyCase is whether requests to a URL go through the proxy of the environment.
type proxyCase struct {
	NoProxy string `json:"noProxy"`
	URL     string `json:"url"`
	Proxied bool   `json:"proxied"`
}

// proxyCases says what clients in Go do, for those in other languages to do the same.
func proxyCases(t *testing.T) string {
	t.Helper()
	lists := []string{
		"", "*", " * ", "a.test", ".a.test", "*.a.test", "A.Test", "b.test, a.test", "test", "a.tes", "xa.test",
		"a.test:8080", "a.test:80", "a.test:443", ".a.test:80", "a.test:", ":80", "a.test:x", "a.*", "a*", ",,",
		"10.1.2.3", "10.1.2.3:80", "10.1.2.3:8080", "10.0.0.0/8", "10.1.2.0/30", "10.1.3.0/24", "10.1.2.3/255.0.0.0",
		"10.1.2.3/", "10.01.2.3", "10.1.2", "::ffff:10.1.2.3", "::ffff:10.0.0.0/104", "0.0.0.0/0", "::/0",
		"2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:80", "[2001:db8::1]:8080", "2001:db8::/32", "2001:DB8::/32",
		"fe80::1%eth0", "bücher.test", "xn--bcher-kva.test", "a.test b.test", "[a.test]:80",
	}
	targets := []string{
		"http://a.test", "https://a.test", "http://a.test:8080", "http://b.a.test", "http://xa.test", "http://A.TEST",
		"http://10.1.2.3", "https://10.1.2.3", "http://10.1.2.3:8080", "http://[2001:db8::1]", "http://[2001:db8::1]:8080",
		"http://[::ffff:10.1.2.3]", "http://localhost", "http://localhost:8080", "http://x.localhost", "http://127.0.0.1:8080",
		"http://127.9.8.7", "http://[::1]:8080", "http://[::ffff:127.0.0.1]", "http://b.xn--bcher-kva.test",
	}
	cases := make([]proxyCase, 0, len(lists)*len(targets))
	for _, list := range lists {
		proxy := (&httpproxy.Config{HTTPProxy: "http://proxy:3128", HTTPSProxy: "http://proxy:3128", NoProxy: list}).ProxyFunc()
		for _, target := range targets {
			parsed, err := url.Parse(target)
			if err != nil {
				t.Fatal(err)
			}
			found, err := proxy(parsed)
			if err != nil {
				t.Fatal(err)
			}
			cases = append(cases, proxyCase{list, target, found != nil})
		}
	}
	text, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
