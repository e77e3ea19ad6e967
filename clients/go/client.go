package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// DefaultURL is where a service on this machine listens.
	DefaultURL = "http://127.0.0.1:8080"

	// URLVariable and KeyVariable are the environment variables that have the URL of the service
	// and the API key; the lifecycle document names the latter.
	URLVariable = "SANDBOX_URL"
	KeyVariable = "SERVICE_API_KEY"
	// KeyHeader is the header of a request that has the API key. Requests to a ProxyURL need it.
	KeyHeader = "SERVICE-API-KEY"

	defaultUserAgent = "sandbox-go"

	// defaultResumeLimit is how long a stream is tried to be resumed without a new event.
	defaultResumeLimit = time.Minute
	// defaultMaxAnswer has room for a result of a cell, such as an image: a kernel's message has at
	// most 64 MiB.
	defaultMaxAnswer = 80 << 20
	// headerTimeout bounds how long an answer may take to begin. The slowest waits for an image.
	headerTimeout = 5 * time.Minute
	// idleConnections is how many connections are kept for later requests.
	idleConnections = 16
)

// Options are what a client is made of. Nil means what is in the environment, and the defaults.
type Options struct {
	// URL is the service's, without a path unless a proxy adds one. Empty means $SANDBOX_URL, or
	// DefaultURL without that.
	URL string
	// Key is the API key. Empty means $SERVICE_API_KEY; without that, none is sent.
	Key string
	// NoKey sends no API key, whatever Key and the environment have.
	NoKey bool
	// UserAgent is how requests name the program that sends them, which the activity of a sandbox
	// shows. Empty means sandbox-go.
	UserAgent string
	// HTTPClient sends the requests. Nil means a client that uses the proxies of the environment
	// and follows no redirection. A client given here should not follow redirections either, and
	// should have no Timeout: streams are endless.
	HTTPClient *http.Client
	// MaxAnswer is how many bytes of an answer are held in memory at most: of one in JSON, of one
	// event of a stream, of a log; 0 means 80 MiB. Files and logs that are streamed have no bound.
	MaxAnswer int
	// ResumeLimit is how long a stream that was cut is tried to be resumed; 0 means one minute.
	ResumeLimit time.Duration
}

// Client is a connection to one service with one key.
type Client struct {
	Images Images
	Keys   Keys

	base        string // without a slash at the end
	http        *http.Client
	service     *lifecycle.Client
	headers     http.Header // that every request gets
	resumeLimit time.Duration
	maxAnswer   int
	options     Options // with everything that was taken from the environment
	defaults    *askedDefaults
}

// New returns a client. It sends no request.
func New(o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	base := strings.TrimRight(cmp.Or(o.URL, os.Getenv(URLVariable), DefaultURL), "/")
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("sandbox: URL must look like %s, not %q", DefaultURL, base)
	}
	c := &Client{
		base:        base,
		http:        o.HTTPClient,
		headers:     http.Header{},
		resumeLimit: cmp.Or(o.ResumeLimit, defaultResumeLimit),
		maxAnswer:   cmp.Or(o.MaxAnswer, defaultMaxAnswer),
		defaults:    &askedDefaults{},
	}
	c.Images, c.Keys = Images{c}, Keys{c}
	key := cmp.Or(o.Key, os.Getenv(KeyVariable))
	if key != "" && !o.NoKey {
		c.headers.Set(KeyHeader, key)
	}
	c.headers.Set("User-Agent", cmp.Or(o.UserAgent, defaultUserAgent))
	if c.http == nil {
		c.http = sandboxhttp.NewClient(sandboxhttp.Options{
			EnvironmentProxy: true,
			HeaderTimeout:    headerTimeout,
			IdleConnections:  idleConnections,
			MaxAnswer:        sandboxhttp.Unbounded, // each use bounds what it holds
		})
	}
	c.service, err = lifecycle.NewClient(base, lifecycle.WithHTTPClient(c.http),
		lifecycle.WithRequestEditorFn(c.authorize))
	if err != nil {
		return nil, fmt.Errorf("sandbox: URL %q: %w", base, err)
	}
	c.options = *o
	c.options.URL, c.options.Key, c.options.HTTPClient = base, key, c.http
	c.options.NoKey = o.NoKey || key == ""
	return c, nil
}

// WithUserAgent returns a client that differs in its [Options.UserAgent] alone. It shares the
// connections, and the defaults that the service was asked for.
func (c *Client) WithUserAgent(userAgent string) (*Client, error) {
	options := c.options
	options.UserAgent = userAgent
	other, err := New(&options)
	if err != nil {
		return nil, err
	}
	other.defaults = c.defaults
	return other, nil
}

// authorize adds the key to a request.
func (c *Client) authorize(_ context.Context, request *http.Request) error {
	for name, values := range c.headers {
		request.Header[name] = values
	}
	return nil
}

// Version returns the build of the service.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var version Version
	err := c.call(ctx, repeatable, &version, func(ctx context.Context) (*http.Response, error) {
		return c.service.GetVersion(ctx)
	})
	return version, err
}

// WatchHostLoad yields every two seconds how busy the machine of the service is. It needs a key
// with the role admin or viewer.
func (c *Client) WatchHostLoad(ctx context.Context) iter.Seq2[HostLoad, error] {
	return events(ctx, &follower{
		client: c, what: "load of the host", endless: true,
		open: func(ctx context.Context, _ string) (*http.Response, error) {
			return c.service.StreamHostLoad(ctx)
		},
	}, func(HostLoad) bool { return false })
}

// Close closes the connections that are kept for later requests.
func (c *Client) Close() { c.http.CloseIdleConnections() }
