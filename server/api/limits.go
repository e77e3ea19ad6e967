package api

import (
	"context"
	"net/http"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// Limits bounds the rate of requests, beyond the rate of each key. The zero value sets no bound.
type Limits struct {
	// Anonymous is the rate of requests of one remote address while no key is configured.
	Anonymous serve.Rate
	// Bounds are of what a client may ask for while no key is configured.
	Bounds lifecycle.Bounds
	// Refused is the rate of requests without a key, or with a wrong one, of one remote address.
	Refused serve.Rate
}

// limitsOf returns what the caller of a request may ask for. A key that has been removed since the
// request was let in may ask for nothing.
func (h *handlers) limitsOf(ctx context.Context) (maxSandboxes int, bounds lifecycle.Bounds, err error) {
	if h.keys.Open() {
		return 0, h.limits.Bounds, nil
	}
	key, ok := h.keys.Named(caller(ctx).Name)
	if !ok {
		return 0, bounds, keyEnded()
	}
	return key.MaxSandboxes, key.Bounds, nil
}

// rateLimits counts the requests of each key, or of each remote address while no key is configured.
func rateLimits(ring *keys.Ring, limits Limits, clock func() time.Time) serve.RateLimits {
	if ring.Open() {
		limits.Refused = serve.Rate{} // there is no key to guess, and a page that is refused has the address of the user who looks at it
	}
	return serve.RateLimits{
		Refused: limits.Refused,
		Clock:   clock,
		Of: func(r *http.Request, principal any) (string, serve.Rate) {
			if ring.Open() {
				return serve.NetworkOf(r), limits.Anonymous
			}
			who, _ := principal.(lifecycle.Principal)
			key, _ := ring.Named(who.Name)
			return who.Name, key.Rate
		},
	}
}
