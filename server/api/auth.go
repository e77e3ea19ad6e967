package api

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// Identify returns the holder of the API key that a request presents in its body. Without any keys,
// every client is an administrator but the page of another host, as in [Options].
func Identify(r *http.Request, ring *keys.Ring, local bool, presented string) (lifecycle.Principal, error) {
	if ring.Open() {
		return lifecycle.Principal{Role: lifecycle.RoleAdmin}, refusePages(r, local)
	}
	if key, ok := ring.Find(presented); ok {
		return lifecycle.Principal{Name: key.Name, Role: key.Role}, nil
	}
	return lifecycle.Principal{}, serve.Unauthorized("body/key: is not a valid API key")
}

// Admits returns a function that reports whether a request has the key of a client, for code in
// front of the server that must not spend memory on other requests. It admits everything when there
// are no keys, but for what [Options].Local refuses, and nothing from an address that has used its
// attempts up: else what happens to a request would distinguish a right guess from a wrong one. It
// counts no attempt; the server does when it refuses the request.
func Admits(server *serve.Server, ring *keys.Ring, local bool) func(*http.Request) bool {
	authenticate := authenticate(ring, local, nil)
	return func(r *http.Request) bool {
		admitted := false
		err := server.Attempt(r, func() error {
			_, err := authenticate(r)
			admitted = err == nil
			return nil
		})
		return admitted && err == nil
	}
}

// authenticate returns who sends a request. A session decides alone where there is one, which
// without keys any page could have begun.
func authenticate(
	ring *keys.Ring, local bool, session func(context.Context) (lifecycle.Principal, bool, error),
) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if ring.Open() {
			if err := refusePages(r, local); err != nil {
				return nil, err
			}
		}
		if session != nil {
			if principal, ok, err := session(r.Context()); ok {
				if err != nil {
					return nil, err
				}
				serve.LogField(r.Context(), "key_name", principal.Name)
				serve.LogField(r.Context(), "console", true)
				return principal, nil
			}
		}
		if ring.Open() {
			return lifecycle.Principal{Role: lifecycle.RoleAdmin}, nil
		}
		presented := reach.PresentedKeys(r.Header)
		for _, p := range presented {
			if key, ok := ring.Find(p.Key); ok {
				serve.LogField(r.Context(), "key_name", key.Name)
				serve.EndWith(r.Context(), key.Alive, keyEnded())
				return lifecycle.Principal{Name: key.Name, Role: key.Role}, nil
			}
		}
		if len(presented) == 0 {
			return nil, serve.Unauthorized("header %s: is required", reach.KeyHeader)
		}
		return nil, serve.Unauthorized("header %s: is not a valid API key", presented[0].Header)
	}
}

// keyEnded is the error of a request whose key has ceased to be valid since it was let in.
func keyEnded() error {
	return serve.Unauthorized("header %s: is not a valid API key any more", reach.KeyHeader)
}

// refusePages refuses what a browser sends for the page of another host to a service without keys,
// where every request is an administrator's. The Origin of such a page has that host, or is null,
// as for the pages that a sandbox serves; these may send requests to ports, where paths have an ID
// that others do not have. Or its host has led the browser to this machine, as the owner of a name
// can do: a local service answers to no name but localhost.
func refusePages(r *http.Request, local bool) error {
	host := (&url.URL{Host: r.Host}).Hostname()
	if _, err := netip.ParseAddr(host); local && err != nil && !strings.EqualFold(host, "localhost") {
		return serve.Unauthorized(
			"header Host: must be localhost or an IP address, because the service is local and has no API keys (server.api_key); got %.100q",
			r.Host)
	}
	origin := r.Header.Get("Origin")
	if origin == "" || origin == "null" && isToPort(r) {
		return nil
	}
	if page, err := url.Parse(origin); err != nil || !strings.EqualFold(page.Hostname(), host) {
		return serve.Unauthorized("header Origin: must be of this host, because the service has no API keys (server.api_key); got %.100q", origin)
	}
	return nil
}

type toPort struct{}

// markToPort marks a request to a port of a sandbox.
func markToPort(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), toPort{}, true))
}

func isToPort(r *http.Request) bool { return r.Context().Value(toPort{}) != nil }

// caller returns the caller of the request that ctx belongs to.
func caller(ctx context.Context) lifecycle.Principal {
	principal, _ := serve.Principal(ctx).(lifecycle.Principal)
	return principal
}
