package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sandbox.internal/server/cluster"
	"sandbox.internal/test/reverse"
)

// behind makes a replica reach the API server through a proxy, which passes on what handle leaves
// to it.
func behind(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, pass http.Handler)) func(*cluster.Options) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", apiServer.Kubeconfig)
	must(t, err)
	transport, err := rest.TransportFor(config)
	must(t, err)
	at, err := url.Parse(config.Host)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.Transport, proxy.FlushInterval = transport, -1
	pass := reverse.Handler(proxy)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, pass) }))
	t.Cleanup(server.Close)
	made := clientcmdapi.NewConfig()
	made.Clusters["proxy"] = &clientcmdapi.Cluster{Server: server.URL}
	made.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy"}
	made.CurrentContext = "proxy"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*made, path))
	return func(o *cluster.Options) { o.Kubeconfig = path }
}
