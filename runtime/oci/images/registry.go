package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/net/http/httpproxy"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/registries"
)

// What answers of registries are bounded by, where they are read into memory.
const (
	maxManifest = 1 << 20 // together with the index that leads to it
	maxAnswer   = 8 << 20
	maxToken    = 64 << 10
	maxRefusal  = 64 << 10
)

const maxRedirects = 10

// headerTimeout is how long a host may take to begin an answer. Another try follows, while there is
// time for it.
const headerTimeout = time.Minute

// dialTimeout bounds how long a connection may take to be made.
const dialTimeout = 30 * time.Second

// retriedCodes are answers of registries that may be others the next time.
var retriedCodes = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// endpoint is one place that an image can be had from: a registry, or a mirror of it.
type endpoint struct {
	ref    name.Reference
	client *http.Client // with the credentials for the registry
	pace   pace
}

// endpoints returns the names of the image at the registry's mirrors, and at the registry itself.
func (s *Store) endpoints(named reference.Named) ([]name.Reference, error) {
	domain := reference.Domain(named)
	var refs []name.Reference
	for _, host := range append(slices.Clone(s.mirrors[domain]), domain) {
		var options []name.Option
		if s.allowsHTTP(host) {
			options = append(options, name.Insecure)
		}
		registry, err := name.NewRegistry(host, options...)
		if err != nil {
			return nil, err
		}
		repository := registry.Repo(reference.Path(named))
		switch n := named.(type) {
		case reference.Digested:
			refs = append(refs, repository.Digest(n.Digest().String()))
		case reference.Tagged:
			refs = append(refs, repository.Tag(n.Tag()))
		}
	}
	return refs, nil
}

// allowsHTTP says whether passwords and images may pass unencrypted to a host, which may have a
// port.
func (s *Store) allowsHTTP(host string) bool {
	if s.insecure[host] {
		return true
	}
	bare, _, err := net.SplitHostPort(host)
	if err != nil {
		bare = host // without a port
	}
	bare = strings.Trim(bare, "[]")
	if registries.IsLocalhost(bare) {
		return true
	}
	address, err := netip.ParseAddr(bare)
	return err == nil && address.IsLoopback()
}

// connect logs in. The caller's credentials are for the registry itself; a mirror has those of the
// user's Docker configuration, and may be an internal host without being listed.
func (s *Store) connect(ctx context.Context, ref name.Reference, auth engine.RegistryAuth, mirror bool) (*endpoint, error) {
	var login authn.Authenticator
	if auth != (engine.RegistryAuth{}) {
		login = &authn.Basic{Username: auth.Username, Password: auth.Password}
	} else {
		found, err := authn.Resolve(ctx, authn.DefaultKeychain, ref.Context())
		if err != nil {
			return nil, fmt.Errorf("credentials for %s: %w", ref.Context().RegistryStr(), err)
		}
		login = found
	}
	patient := transport.NewRetry(s.newGuard(ref.Context(), mirror || !engine.CallerOf(ctx).Guest), transport.WithRetryStatusCodes(retriedCodes...))
	scopes := []string{ref.Scope(transport.PullScope)}
	logged, err := transport.NewWithContext(ctx, ref.Context().Registry, login, patient, scopes)
	if err != nil {
		return nil, err
	}
	return &endpoint{ref: ref, client: &http.Client{Transport: logged}, pace: s.pace}, nil
}

// guard is below everything that talks to a registry. It decides which hosts the registry may lead
// this host to, by redirects and by what it says where tokens are, and bounds what of their answers
// is read into memory and quoted.
//
// A public registry leads to public hosts only, and over HTTPS. One on an internal network leads to
// itself, and to what is listed: else who may name it could have this host ask anything there.
// Names are checked here, and what they resolve to when a connection is made.
type guard struct {
	own, others http.RoundTripper // for the registry itself, and for every other host
	rules       registries.Rules
	plain       func(host string) bool
	manifests   atomic.Int64 // bytes that were read of them: an index may lead to another, and all are held
	registry    string       // that the pull is for, perhaps with a port
	repository  string
	internal    bool // the registry itself is an internal host, or may be asked over HTTP
	permitted   bool // although it is not listed
}

// newGuard returns what may be asked for an image of the repository. permitted says that the
// registry may be an internal host without being listed.
func (s *Store) newGuard(repository name.Repository, permitted bool) *guard {
	registry := repository.RegistryStr()
	bare := (&url.URL{Host: registry}).Hostname()
	g := &guard{own: s.base, others: s.base, rules: s.rules, plain: s.allowsHTTP, registry: registry, repository: repository.RepositoryStr(),
		internal: registries.IsInternalHost(bare) || s.allowsHTTP(registry), permitted: permitted}
	if permitted {
		g.own = s.permitted
	}
	return g
}

// refusedError is why the guard sends no request. Another try ends the same way.
type refusedError = registries.RefusedError

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	first, redirects := firstOf(request)
	if redirects > maxRedirects {
		return nil, refusedError(fmt.Sprintf("stopped after %d redirects", maxRedirects))
	}
	if err := g.check(request.URL); err != nil {
		return nil, err
	}
	inner := g.others
	if request.URL.Host == g.registry {
		inner = g.own
	}
	response, err := inner.RoundTrip(request)
	if refused := refusedError(""); errors.As(err, &refused) {
		return nil, refused // without the address that the host was resolved to
	}
	if err != nil {
		return nil, err
	}
	own := first.URL.Host == g.registry && (first.URL.Path == "/v2/" || strings.HasPrefix(first.URL.Path, "/v2/"+g.repository+"/"))
	switch {
	case response.StatusCode >= http.StatusMultipleChoices:
		return withoutForeignWords(response), nil
	case !own:
		return onlyToken(response), nil
	case first.Context().Value(layerPath{}) == first.URL.Path: // it goes to the disk, and its size is known
	case strings.Contains(first.URL.Path, "/manifests/"):
		response.Body = &boundedBody{ReadCloser: response.Body, what: "manifest", read: &g.manifests, limit: maxManifest}
	default:
		response.Body = &boundedBody{ReadCloser: response.Body, what: "answer", read: new(atomic.Int64), limit: maxAnswer}
	}
	return response, nil
}

// check refuses hosts that the registry must not lead to, or be.
func (g *guard) check(target *url.URL) error {
	own, listed := target.Host == g.registry, g.rules.Lists(target.Host)
	switch {
	case own && g.permitted || listed && (own || g.internal):
	case own && registries.IsInternalHost(target.Hostname()):
		return registries.Internal(target.Host)
	case !own && g.internal:
		return refusedError(fmt.Sprintf("the registry %s leads to %s: one with an internal address leads to itself, and to what is in runtime.internal_registries",
			g.registry, target.Host))
	case !own && registries.IsInternalHost(target.Hostname()):
		return refusedError(fmt.Sprintf("the registry %s leads to %s, which is an internal address", g.registry, target.Host))
	}
	if target.Scheme != "https" && !(g.plain(g.registry) && g.plain(target.Host)) {
		return refusedError(target.Host + " is asked over HTTPS only")
	}
	return nil
}

// firstOf returns the request that a chain of redirects began with, and their number.
func firstOf(request *http.Request) (first *http.Request, redirects int) {
	for request.Response != nil && request.Response.Request != nil {
		request = request.Response.Request
		redirects++
	}
	return request, redirects
}

// layerPath is the key of contexts for the path of a layer's blob.
type layerPath struct{}

// withLayer marks requests for a layer. Requests for tokens that they cause have another path.
func withLayer(ctx context.Context, path string) context.Context {
	return context.WithValue(ctx, layerPath{}, path)
}

// withoutForeignWords leaves of a refusal what registries define: codes and messages. Anything else
// may be of a host that is no registry, and errors are shown to clients.
func withoutForeignWords(response *http.Response) *http.Response {
	type words struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	var said struct {
		Errors []words `json:"errors,omitempty"`
	}
	content, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if json.Unmarshal(content, &said) != nil {
		said.Errors = nil
	}
	said.Errors = said.Errors[:min(len(said.Errors), 4)]
	for i, e := range said.Errors {
		said.Errors[i] = words{Code: printable(e.Code, 64), Message: printable(e.Message, 400)}
	}
	if len(said.Errors) == 0 {
		return withBody(response, nil)
	}
	content, _ = json.Marshal(said)
	return withBody(response, content)
}

// onlyToken leaves an answer as it is when it has a token; the library would quote another.
func onlyToken(response *http.Response) *http.Response {
	content, _ := io.ReadAll(io.LimitReader(response.Body, maxToken))
	var token transport.Token
	if json.Unmarshal(content, &token) != nil || token.Token == "" && token.AccessToken == "" {
		content = []byte("{}")
	}
	return withBody(response, content)
}

func withBody(response *http.Response, content []byte) *http.Response {
	_ = response.Body.Close()
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	response.Header.Del("Content-Length")
	response.Header.Del("Content-Encoding")
	return response
}

// boundedBody fails, unlike io.LimitReader, when there is more.
type boundedBody struct {
	io.ReadCloser
	what  string
	read  *atomic.Int64 // bytes
	limit int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read.Add(int64(n)) > b.limit {
		return 0, fmt.Errorf("the %s is larger than %d bytes", b.what, b.limit)
	}
	return n, err
}

// newTransport returns what connects to hosts. permitted lets them be internal ones that are not
// listed.
func (s *Store) newTransport(permitted bool) *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ReadBufferSize = 64 << 10
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = headerTimeout
	proxies := proxyHosts()
	t.DialContext = func(ctx context.Context, network, host string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}
		if !slices.Contains(proxies, host) {
			dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
				resolved, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				return s.rules.CheckAddress(host, resolved, permitted)
			}
		}
		return dialer.DialContext(ctx, network, host)
	}
	return t
}

// proxyHosts returns the hosts, with a port, that the environment has requests sent through.
func proxyHosts() (hosts []string) {
	proxies := httpproxy.FromEnvironment()
	for _, setting := range []string{proxies.HTTPProxy, proxies.HTTPSProxy} {
		if !strings.Contains(setting, "://") {
			setting = "http://" + setting
		}
		proxy, err := url.Parse(setting)
		if err != nil || proxy.Host == "" {
			continue
		}
		port := proxy.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[proxy.Scheme]
		}
		hosts = append(hosts, net.JoinHostPort(proxy.Hostname(), port))
	}
	return hosts
}
