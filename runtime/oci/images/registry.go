package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"sandbox.internal/runtime/engine"
)

// maxManifest bounds manifests and indexes of registries; registries accept no larger ones themselves.
const maxManifest = 4 << 20

// retriedCodes are answers of registries that may be others the next time.
var retriedCodes = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// endpoint is one place that an image can be had from: a registry, or a mirror of it.
type endpoint struct {
	ref    name.Reference
	client *http.Client // with the credentials for the registry
}

// endpoints returns the names of the image at the registry's mirrors, and at the registry itself.
func (s *Store) endpoints(named reference.Named) ([]name.Reference, error) {
	domain := reference.Domain(named)
	var refs []name.Reference
	for _, host := range append(slices.Clone(s.mirrors[domain]), domain) {
		var options []name.Option
		if s.mayAskPlainly(host) {
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

// mayAskPlainly says whether passwords and images may pass unencrypted to a host, which may have a port.
func (s *Store) mayAskPlainly(host string) bool {
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
	patient := transport.NewRetry(&guard{inner: s.base, plain: s.mayAskPlainly}, transport.WithRetryStatusCodes(retriedCodes...))
	scopes := []string{ref.Scope(transport.PullScope)}
	logged, err := transport.NewWithContext(ctx, ref.Context().Registry, login, patient, scopes)
	if err != nil {
		return nil, err
	}
	return &endpoint{ref: ref, client: &http.Client{Transport: logged, CheckRedirect: s.checkRedirect}}, nil
}

// checkRedirect keeps a public registry from leading this host to addresses that only this host reaches. Names of hosts are not resolved.
func (s *Store) checkRedirect(request *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	from, to := via[0].URL.Hostname(), request.URL.Hostname()
	if from == to || isPrivate(from) || s.insecure[via[0].URL.Host] {
		return nil
	}
	if isPrivate(to) {
		return fmt.Errorf("the registry redirects to %s, an address of a private network", to)
	}
	return nil
}

func isPrivate(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return isLocalhost(host)
	}
	address = address.Unmap()
	return address.IsPrivate() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsUnspecified()
}

// isLocalhost reports whether resolvers give the name a loopback address (RFC 6761, 6.3).
func isLocalhost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// guard is below everything that talks to registries: it refuses HTTP where only HTTPS is allowed, and bounds what is read into memory.
type guard struct {
	inner http.RoundTripper
	plain func(host string) bool
}

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !g.plain(request.URL.Host) {
		return nil, fmt.Errorf("%s is asked over HTTPS only", request.URL.Host)
	}
	response, err := g.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if strings.Contains(request.URL.Path, "/manifests/") {
		response.Body = &boundedBody{ReadCloser: response.Body, left: maxManifest}
	}
	return response, nil
}

// boundedBody fails, unlike io.LimitReader, when there is more.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	return n, err
}

func newTransport() *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ReadBufferSize = 64 << 10
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}
