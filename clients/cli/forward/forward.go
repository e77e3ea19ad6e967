// Package forward makes a port of a sandbox one of this machine: HTTP and WebSockets go through the
// service's proxy path to the sandbox.
package forward

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"
)

// confined is the policy that the service adds to pages below its own origin. Here a page has the
// origin of its port alone, so the sandbox's pages work as they do without the service.
const confined = "sandbox allow-scripts allow-forms allow-popups allow-downloads"

const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 10 * time.Second // for a request to arrive
)

// Options are what a forwarder needs.
type Options struct {
	// Target is the URL of the port at the service, without a slash at its end.
	Target string
	// Header is added to every request: the key of the service.
	Header http.Header
	// OnError is called for each request that did not get through. It may be nil.
	OnError func(error)
}

// New returns a server for a listener of this machine.
func New(o Options) (*http.Server, error) {
	target, err := url.Parse(o.Target)
	if err != nil {
		return nil, fmt.Errorf("the URL of the port: %w", err)
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: 16,
		DisableCompression:  true, // answers are passed on as they are
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.URL.Path, r.Out.URL.RawPath = target.Path+below(r.In.URL.Path, target.Path), ""
			r.Out.URL.Opaque = target.EscapedPath() + below(written(r.In.URL), target.EscapedPath())
			if toProxy(r.Out) {
				r.Out.URL.Opaque = "//" + target.Host + r.Out.URL.Opaque
			}
			r.Out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy leaves out what it does not understand
			r.Out.Host = target.Host
			r.SetXForwarded()
			for name, values := range o.Header {
				r.Out.Header[name] = values
			}
		},
		ModifyResponse: func(response *http.Response) error {
			unconfine(response.Header, target.Path)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client went away
			}
			if o.OnError != nil {
				o.OnError(err)
			}
			http.Error(w, "the service does not answer", http.StatusBadGateway)
		},
	}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: headerTimeout,
		ErrorLog: log.New(io.Discard, "", 0)}
	server.RegisterOnShutdown(transport.CloseIdleConnections)
	return server, nil
}

// written is a path as the client wrote it. net/url keeps it only where its own way of escaping
// would give something else, and EscapedPath alone would still change characters that do not belong
// in a URL, such as |.
func written(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// toProxy reports whether a request goes to an HTTP proxy, which needs the whole URL:
// [http.Transport] does not complete one that is opaque.
func toProxy(r *http.Request) bool {
	proxy, err := http.ProxyFromEnvironment(r)
	return err == nil && proxy != nil && r.URL.Scheme == "http"
}

// below is a path without the prefix of the port. A server that makes its links from
// X-Forwarded-Prefix has put it in front.
func below(path, prefix string) string {
	if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
		return rest
	}
	return path
}

// unconfine takes back what the service does to an answer because its origin has many sandboxes.
func unconfine(header http.Header, prefix string) {
	policies := header["Content-Security-Policy"]
	for i, policy := range slices.Backward(policies) {
		if policy == confined {
			policies = slices.Delete(policies, i, i+1)
			break
		}
	}
	if header.Del("Content-Security-Policy"); len(policies) > 0 {
		header["Content-Security-Policy"] = policies
	}
	if location := header.Get("Location"); strings.HasPrefix(location, prefix) {
		if location = below(location, prefix); location == "" || location[0] != '/' {
			location = "/" + location
		}
		header.Set("Location", location)
	}
	for i, cookie := range header["Set-Cookie"] {
		parts := strings.Split(cookie, ";")
		for j, part := range parts[1:] {
			name, value, _ := strings.Cut(part, "=")
			if strings.EqualFold(strings.TrimSpace(name), "path") {
				path := below(strings.TrimSpace(value), prefix)
				if path == "" {
					path = "/"
				}
				parts[j+1] = " Path=" + path
			}
		}
		header["Set-Cookie"][i] = strings.Join(parts, ";")
	}
}

// Serve serves until the server is closed, and returns nil then.
func Serve(server *http.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
