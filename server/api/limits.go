package api

import (
	"net/http"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// Limits bounds the rate of requests, beyond the rate of each [Key]. The zero value sets no bound.
type Limits struct {
	// Anonymous is the rate of requests of one remote address while no key is configured.
	Anonymous serve.Rate
	// Bounds are of what a client may ask for while no key is configured.
	Bounds lifecycle.Bounds
	// Refused is the rate of requests without a key, or with a wrong one, of one remote address.
	Refused serve.Rate
}

// maxSandboxes returns how many sandboxes that have not ended each key may have, by its name.
func maxSandboxes(keys []Key) map[string]int {
	limits := make(map[string]int, len(keys))
	for _, key := range keys {
		limits[key.Name] = key.MaxSandboxes
	}
	return limits
}

// bounds returns what each key may ask for, by its name; while no key is configured, what all may.
func bounds(keys []Key, limits Limits) map[string]lifecycle.Bounds {
	all := make(map[string]lifecycle.Bounds, len(keys)+1)
	if len(keys) == 0 {
		all[""] = limits.Bounds
	}
	for _, key := range keys {
		all[key.Name] = key.Bounds
	}
	return all
}

// rateLimits counts the requests of each key, or of each remote address while no key is configured.
func rateLimits(keys []Key, limits Limits, clock func() time.Time) serve.RateLimits {
	rates := make(map[string]serve.Rate, len(keys))
	for _, key := range keys {
		rates[key.Name] = key.Rate
	}
	if len(keys) == 0 {
		limits.Refused = serve.Rate{} // there is no key to guess, and a page that is refused has the address of the user who looks at it
	}
	return serve.RateLimits{
		Refused: limits.Refused,
		Clock:   clock,
		Of: func(r *http.Request, principal any) (string, serve.Rate) {
			if len(keys) == 0 {
				return serve.NetworkOf(r), limits.Anonymous
			}
			who, _ := principal.(lifecycle.Principal)
			return who.Name, rates[who.Name]
		},
	}
}
