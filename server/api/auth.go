package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// keyHeader is the header that carries an API key (lifecycle document, "Authentication").
const keyHeader = "SERVICE-API-KEY"

// Key is an API key that is let in, known by its digest alone.
type Key struct {
	Name   string
	Digest [sha256.Size]byte // SHA-256 of the key
	Role   lifecycle.Role
	Rate   serve.Rate // how often it may call; the zero value means as often as it likes
}

// authenticate returns who sends a request. Every key is compared, so that the time it takes tells nothing about any of them.
func authenticate(keys []Key) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if len(keys) == 0 {
			return lifecycle.Principal{Role: lifecycle.RoleAdmin}, nil
		}
		presented := r.Header.Get(keyHeader)
		if presented == "" {
			return nil, serve.Unauthorized("header %s: is required", keyHeader)
		}
		digest := sha256.Sum256([]byte(presented))
		var principal lifecycle.Principal
		for _, key := range keys {
			if subtle.ConstantTimeCompare(digest[:], key.Digest[:]) == 1 {
				principal = lifecycle.Principal{Name: key.Name, Role: key.Role}
			}
		}
		if principal.Role == "" {
			return nil, serve.Unauthorized("header %s: is not a valid API key", keyHeader)
		}
		serve.LogField(r.Context(), "key_name", principal.Name)
		return principal, nil
	}
}

// caller returns who sends the request that ctx belongs to.
func caller(ctx context.Context) lifecycle.Principal {
	principal, _ := serve.Principal(ctx).(lifecycle.Principal)
	return principal
}
