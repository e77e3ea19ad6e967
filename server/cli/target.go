package cli

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/url"

	"sandbox.internal/gen/execd"
	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/runtime/sandboxhttp"
)

const (
	defaultURL = "http://127.0.0.1:8080"
	urlVar     = "SANDBOX_URL"
	keyVar     = "SERVICE_API_KEY" // the name that the lifecycle document gives to clients
	keyHeader  = "SERVICE-API-KEY"
)

// target says which service to talk to, and with which key.
type target struct {
	url    string
	apiKey string
}

// register declares the flags. The environment is applied later, so that help never
// shows a key as the default of its flag.
func (t *target) register(flags *flag.FlagSet) {
	flags.StringVar(&t.url, "url", t.url,
		"the lifecycle service's `URL`; else $"+urlVar+", else "+defaultURL)
	flags.StringVar(&t.apiKey, "api-key", t.apiKey,
		"the service's API `KEY`; better set $"+keyVar+", which ps does not show")
}

// connection holds the clients of one command. It keeps idle connections open until
// close, so that requests do not pay for a new one each.
type connection struct {
	url     string
	secured bool // whether an API key is sent
	http    *http.Client
	service *lifecycle.Client
}

// connect checks the target and prepares a client for it; nothing is sent yet.
func (t *tool) connect() (*connection, error) {
	base := cmp.Or(t.target.url, t.env(urlVar), defaultURL)
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, usageErrorf("url: must look like %s, not %q", defaultURL, base)
	}
	key := cmp.Or(t.target.apiKey, t.env(keyVar))
	c := &connection{
		url:     base,
		secured: key != "",
		// A redirection would carry the key, or a sandbox's token, to the host that it names.
		http: sandboxhttp.NewClient(sandboxhttp.Options{EnvironmentProxy: true, IdleConnections: 2,
			MaxAnswer: sandboxhttp.Unbounded}),
	}
	headers := map[string]string{}
	if key != "" {
		headers[keyHeader] = key
	}
	c.service, err = lifecycle.NewClient(base, lifecycle.WithHTTPClient(c.http),
		lifecycle.WithRequestEditorFn(addHeaders(headers)))
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", base, err)
	}
	return c, nil
}

// daemon returns a client for the execution API behind an endpoint of a sandbox.
func (c *connection) daemon(endpoint lifecycle.Endpoint) (*execd.Client, error) {
	client, err := execd.NewClient(endpoint.URL, execd.WithHTTPClient(c.http),
		execd.WithRequestEditorFn(addHeaders(endpoint.Headers)))
	if err != nil {
		return nil, fmt.Errorf("prepare the client of endpoint %s: %w", endpoint.URL, err)
	}
	return client, nil
}

func (c *connection) close() { c.http.CloseIdleConnections() }

func addHeaders(headers map[string]string) func(context.Context, *http.Request) error {
	return func(_ context.Context, request *http.Request) error {
		for name, value := range headers {
			request.Header.Set(name, value)
		}
		return nil
	}
}
