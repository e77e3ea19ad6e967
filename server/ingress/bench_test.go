package ingress_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"sandbox.internal/server/ingress"
)

// BenchmarkOneClient compares the ingress with a bare reverse proxy.
func BenchmarkOneClient(b *testing.B) {
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a small answer") }))
	defer daemon.Close()
	target, err := url.Parse(daemon.URL)
	if err != nil {
		b.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	bare := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	defer bare.Close()
	file := routeFile(b, "[[routes]]\nsandbox = \""+box+"\"\naddress = \""+daemon.Listener.Addr().String()+"\"\ntoken = \""+token+"\"\n")
	in := start(b, ingress.ModeURI, func(s *ingress.Settings) { s.Routes = file })
	through := in.request(b, http.MethodGet, box, 8000, "/", nil)
	direct := through.Clone(b.Context())
	direct.URL.Host = bare.Listener.Addr().String()
	for name, r := range map[string]*http.Request{"ingress": through, "bare": direct} {
		b.Run(name, func(b *testing.B) {
			client := &http.Transport{}
			defer client.CloseIdleConnections()
			b.ReportAllocs()
			for b.Loop() {
				response, err := client.RoundTrip(r)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
		})
	}
}
