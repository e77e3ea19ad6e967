package images

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"sandbox.internal/runtime/engine"
)

// What answers of registries are bounded by, where they are read into memory.
const (
	maxManifest = 1 << 20 // together with the index that leads to it
	maxAnswer   = 8 << 20
	maxToken    = 64 << 10
	maxRefusal  = 64 << 10
)

const maxRedirects = 10

// headerTimeout is how long a host may take to begin an answer. Another try follows, while there is time for it.
const headerTimeout = time.Minute

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

// allowsHTTP says whether passwords and images may pass unencrypted to a host, which may have a port.
func (s *Store) allowsHTTP(host string) bool {
	if s.insecure[host] {
		return true
	}
	bare, _, err := net.SplitHostPort(host)
	if err != nil {
		bare = host // without a port
	}
	bare = strings.Trim(bare, "[]")
	if isLocalhost(bare) {
		return true
	}
	address, err := netip.ParseAddr(bare)
	return err == nil && address.IsLoopback()
}

// connect logs in. The caller's credentials are for the registry itself; a mirror has those of the user's Docker configuration.
func (s *Store) connect(ctx context.Context, ref name.Reference, auth engine.RegistryAuth) (*endpoint, error) {
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
	patient := transport.NewRetry(s.newGuard(ref.Context()), transport.WithRetryStatusCodes(retriedCodes...))
	scopes := []string{ref.Scope(transport.PullScope)}
	logged, err := transport.NewWithContext(ctx, ref.Context().Registry, login, patient, scopes)
	if err != nil {
		return nil, err
	}
	return &endpoint{ref: ref, client: &http.Client{Transport: logged}, pace: s.pace}, nil
}

// internalRanges are of no public host, beside those that package netip has names for: this network, and what providers share.
var internalRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10")}

// isInternal reports whether a host is an address that is not a public one, or localhost. Other names are not resolved.
func isInternal(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return isLocalhost(host)
	}
	address = address.Unmap().WithZone("")
	return address.IsPrivate() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsUnspecified() || address.IsMulticast() ||
		slices.ContainsFunc(internalRanges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// isLocalhost reports whether resolvers give the name a loopback address (RFC 6761, 6.3).
func isLocalhost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// guard is below everything that talks to a registry. It decides which hosts the registry may lead this host to, by redirects and by what it
// says where tokens are, and bounds what of their answers is read into memory and quoted.
//
// A public registry leads to public hosts only, and over HTTPS: so a name that resolves to an internal address is of no use to it, because
// what answers there has no certificate for the name.
type guard struct {
	inner      http.RoundTripper
	plain      func(host string) bool
	manifests  atomic.Int64 // bytes that were read of them: an index may lead to another, and all are held
	registry   string       // that the pull is for, perhaps with a port
	repository string
	internal   bool // the registry itself is an internal host, or may be asked over HTTP
}

func (s *Store) newGuard(repository name.Repository) *guard {
	registry := repository.RegistryStr()
	bare := (&url.URL{Host: registry}).Hostname()
	return &guard{inner: s.base, plain: s.allowsHTTP, registry: registry, repository: repository.RepositoryStr(),
		internal: isInternal(bare) || s.allowsHTTP(registry)}
}

// refusedError is why the guard sends no request. Another try ends the same way.
type refusedError string

func (e refusedError) Error() string { return string(e) }

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	first, redirects := firstOf(request)
	if redirects > maxRedirects {
		return nil, refusedError(fmt.Sprintf("stopped after %d redirects", maxRedirects))
	}
	if err := g.check(request.URL); err != nil {
		return nil, err
	}
	response, err := g.inner.RoundTrip(request)
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

// check refuses hosts that the registry must not lead to.
func (g *guard) check(target *url.URL) error {
	if target.Scheme != "https" && !(g.plain(g.registry) && g.plain(target.Host)) {
		return refusedError(target.Host + " is asked over HTTPS only")
	}
	if !g.internal && isInternal(target.Hostname()) {
		return refusedError(fmt.Sprintf("the registry %s leads to %s, which is an internal address", g.registry, target.Host))
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

// withoutForeignWords leaves of a refusal what registries define: codes and messages. Anything else may be of a host that is no registry, and
// errors are shown to clients.
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

func newTransport() *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ReadBufferSize = 64 << 10
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = headerTimeout
	return t
}
