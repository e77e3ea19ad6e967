package conformance

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"

	"sandbox.internal/test/reverse"
)

// Hosts is a reverse proxy with TLS and HTTP/2 for the hosts below a domain.
type Hosts struct {
	// Domain is the domain with the port.
	Domain string
	// CA is the path of the certificate to trust.
	CA string

	server *httptest.Server
}

// NewHosts returns a reverse proxy that listens and does not serve before [Hosts.Serve], so that a
// service can be configured with its Domain.
func NewHosts(t *testing.T, domain string) *Hosts {
	t.Helper()
	certificate := selfSigned(t, "*."+domain)
	server := httptest.NewUnstartedServer(nil)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.EnableHTTP2 = true
	t.Cleanup(server.Close)
	directory := t.TempDir()
	Write(t, directory, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})))
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &Hosts{Domain: net.JoinHostPort(domain, port), CA: filepath.Join(directory, "ca.pem"), server: server}
}

// Serve passes requests to the service, with their Host.
func (h *Hosts) Serve(t *testing.T, service string) {
	t.Helper()
	target, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	h.server.Config.Handler = reverse.Handler(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
	})
	h.server.StartTLS()
}
