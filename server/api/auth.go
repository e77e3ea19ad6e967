package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// Key is an API key that is let in, known by its digest alone.
type Key struct {
	Name   string
	Digest [sha256.Size]byte // SHA-256 of the key
	Role   lifecycle.Role
	Rate   serve.Rate // how often it may call; the zero value means as often as it likes
}

// find returns the key that was presented, nil when it is none of these. Every key is compared, so that the time it takes reveals
// nothing about any of them.
func find(keys []Key, presented string) (found *Key) {
	digest := sha256.Sum256([]byte(presented))
	for i := range keys {
		if subtle.ConstantTimeCompare(digest[:], keys[i].Digest[:]) == 1 {
			found = &keys[i]
		}
	}
	return found
}

// Identify returns the holder of an API key. Without any keys, everybody is an administrator.
func Identify(keys []Key, presented string) (lifecycle.Principal, error) {
	if len(keys) == 0 {
		return lifecycle.Principal{Role: lifecycle.RoleAdmin}, nil
	}
	if key := find(keys, presented); key != nil {
		return lifecycle.Principal{Name: key.Name, Role: key.Role}, nil
	}
	return lifecycle.Principal{}, serve.Unauthorized("body/key: is not a valid API key")
}

// authenticate returns who sends a request. A session decides alone where there is one.
func authenticate(keys []Key, session func(context.Context) (lifecycle.Principal, bool, error)) func(*http.Request) (any, error) {
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

// caller returns who sends the request that ctx belongs to.
func caller(ctx context.Context) lifecycle.Principal {
	principal, _ := serve.Principal(ctx).(lifecycle.Principal)
	return principal
}
