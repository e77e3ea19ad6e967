package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// Key is an accepted API key. Only its digest is held.
type Key struct {
	Name   string
	Digest [sha256.Size]byte // SHA-256 of the key
	Role   lifecycle.Role
	Rate   serve.Rate // of its requests; the zero value means no bound

	MaxSandboxes int // that have not ended; 0 means no bound
}

// find returns the key with the value presented, nil when there is none. Every key is compared, so
// that the duration reveals nothing about any of them.
func find(keys []Key, presented string) (found *Key) {
	digest := sha256.Sum256([]byte(presented))
	for i := range keys {
		if subtle.ConstantTimeCompare(digest[:], keys[i].Digest[:]) == 1 {
			found = &keys[i]
		}
	}
	return found
}

// Identify returns the holder of an API key. Without any keys, every client is an administrator.
func Identify(keys []Key, presented string) (lifecycle.Principal, error) {
	if len(keys) == 0 {
		return lifecycle.Principal{Role: lifecycle.RoleAdmin}, nil
	}
	if key := find(keys, presented); key != nil {
		return lifecycle.Principal{Name: key.Name, Role: key.Role}, nil
	}
	return lifecycle.Principal{}, serve.Unauthorized("body/key: is not a valid API key")
}

// Admits returns a function that reports whether a request has the key of a client, for code in front of the server that must not spend
// memory on other requests. It admits everything when there are no keys, but for what [Options].Local refuses, and nothing from an
// address that has used its attempts up: else what happens to a request would distinguish a right guess from a wrong one. It counts no
// attempt; the server does when it refuses the request.
func Admits(server *serve.Server, keys []Key, local bool) func(*http.Request) bool {
	authenticate := authenticate(keys, local, nil)
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

// authenticate returns who sends a request. A session decides alone where there is one.
func authenticate(
	keys []Key, local bool, session func(context.Context) (lifecycle.Principal, bool, error),
) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
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
		if len(keys) == 0 && local {
			return lifecycle.Principal{Role: lifecycle.RoleAdmin}, refuseNames(r)
		}
		if len(keys) == 0 {
			return lifecycle.Principal{Role: lifecycle.RoleAdmin}, nil
		}
		presented := reach.PresentedKeys(r.Header)
		for _, p := range presented {
			if key := find(keys, p.Key); key != nil {
				serve.LogField(r.Context(), "key_name", key.Name)
				return lifecycle.Principal{Name: key.Name, Role: key.Role}, nil
			}
		}
		if len(presented) == 0 {
			return nil, serve.Unauthorized("header %s: is required", reach.KeyHeader)
		}
		return nil, serve.Unauthorized("header %s: is not a valid API key", presented[0].Header)
	}
}

// refuseNames refuses a request under the name of another host. The page of a browser sends it: whoever owns a name can have it lead
// to this machine, and the browser then takes the service for the page's own.
func refuseNames(r *http.Request) error {
	host := (&url.URL{Host: r.Host}).Hostname()
	if _, err := netip.ParseAddr(host); err == nil || strings.EqualFold(host, "localhost") {
		return nil
	}
	return serve.Unauthorized(
		"header Host: must be localhost or an IP address, because the service is local and has no API keys (server.api_key); got %.100q",
		r.Host)
}

// caller returns the caller of the request that ctx belongs to.
func caller(ctx context.Context) lifecycle.Principal {
	principal, _ := serve.Principal(ctx).(lifecycle.Principal)
	return principal
}
