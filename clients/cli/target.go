package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/internal/build"
	"sandbox.internal/wire/sandboxhttp"
)

// contextVar is the environment variable that names a context.
const contextVar = "SANDBOX_CONTEXT"

// target is which service to talk to, and with which key.
type target struct {
	url     string
	apiKey  string
	context string

	connection *connection
}

// register declares the flags. The environment is applied later, so that help never
// shows a key as the default of its flag.
func (t *target) register(flags *pflag.FlagSet) {
	flags.StringVar(&t.url, "url", "", "the service's `URL`; else of --context, else $"+sandbox.URLVariable)
	flags.StringVar(&t.apiKey, "api-key", "",
		"its API `KEY`; better set $"+sandbox.KeyVariable+", which ps does not show")
	flags.StringVar(&t.context, "context", "", "`NAME` of a service that login has saved; else $"+contextVar)
}

func (t *target) close() {
	if t.connection != nil {
		t.connection.close()
	}
}

// resolve returns the service that flags, environment and contexts name, in this order. The key
// of a context is only used for the URL of the same context: another host must not get it.
func (t *target) resolve(env func(string) string) (service, error) {
	saved, err := loadContexts(env)
	if err != nil {
		return service{}, err
	}
	var chosen service // by a flag or the environment
	if t.context != "" {
		if chosen, err = saved.get(t.context); err != nil {
			return service{}, err
		}
	}
	current := service{}
	if name := cmp.Or(env(contextVar), saved.Current); name != "" {
		// One that is gone matters only when nothing else says where to go.
		found, err := saved.get(name)
		if err != nil && t.url == "" && chosen.URL == "" && env(sandbox.URLVariable) == "" {
			return service{}, err
		}
		current = found
	}
	result := service{URL: cmp.Or(t.url, chosen.URL, env(sandbox.URLVariable), current.URL, sandbox.DefaultURL)}
	for _, from := range []service{
		{result.URL, t.apiKey}, chosen, {result.URL, env(sandbox.KeyVariable)}, current,
	} {
		if from.URL == result.URL && from.APIKey != "" {
			result.APIKey = from.APIKey
			break
		}
	}
	return result, checkURL(result.URL)
}

func checkURL(text string) error {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return usageErrorf("url: must look like %s, not %q", sandbox.DefaultURL, text)
	}
	return nil
}

// connection holds the clients of one command. It keeps idle connections open until
// close, so that requests do not pay for a new one each.
type connection struct {
	url     string
	secured bool        // whether an API key is sent
	header  http.Header // that every request to the service gets
	http    *http.Client
	service *lifecycle.Client
	client  *sandbox.Client // over the same connections
}

// connect checks the target and prepares a client for it; nothing is sent yet. It is the same
// connection for the whole command.
func (t *tool) connect() (*connection, error) {
	if t.target.connection == nil {
		to, err := t.target.resolve(t.Env)
		if err != nil {
			return nil, err
		}
		if t.target.connection, err = newConnection(to); err != nil {
			return nil, err
		}
	}
	return t.target.connection, nil
}

func newConnection(to service) (*connection, error) {
	c := &connection{
		url:     to.URL,
		secured: to.APIKey != "",
		header:  http.Header{},
		// A redirection would carry the key, or a sandbox's token, to the host that it names.
		http: sandboxhttp.NewClient(sandboxhttp.Options{EnvironmentProxy: true, IdleConnections: 8,
			MaxAnswer: sandboxhttp.Unbounded}),
	}
	if c.secured {
		c.header.Set(sandbox.KeyHeader, to.APIKey)
	}
	var err error
	c.service, err = lifecycle.NewClient(to.URL, lifecycle.WithHTTPClient(c.http),
		lifecycle.WithRequestEditorFn(c.authorize))
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", to.URL, err)
	}
	// Whether the environment's key is the one was decided before: login, for one, tries the key
	// that it saves.
	c.client, err = sandbox.New(&sandbox.Options{URL: to.URL, Key: to.APIKey, NoKey: !c.secured, HTTPClient: c.http,
		UserAgent: "sandbox-cli/" + build.Version()})
	return c, err
}

// authorize adds the key to a request.
func (c *connection) authorize(_ context.Context, request *http.Request) error {
	for name, values := range c.header {
		request.Header[name] = values
	}
	return nil
}

func (c *connection) close() { c.http.CloseIdleConnections() }

// completeContexts offers the names of contexts.
func (t *tool) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	saved, err := loadContexts(t.Env)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return saved.names(), cobra.ShellCompDirectiveNoFileComp
}
