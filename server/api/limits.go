package api

import (
	"net"
	"net/http"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// Limits bounds how often the service may be called, beyond the rate that each [Key] has. The zero value sets no bound.
type Limits struct {
	// Anonymous is how often one remote address may call while no key is configured.
	Anonymous serve.Rate
	// Refused is how often one remote address may send a missing or wrong key.
	Refused serve.Rate
	// Clock tells the time; nil means time.Now.
	Clock func() time.Time
}

// rateLimits counts the requests of each key, or of each remote address when everybody is let in.
func rateLimits(keys []Key, limits Limits) serve.RateLimits {
	rates := make(map[string]serve.Rate, len(keys))
	for _, key := range keys {
		rates[key.Name] = key.Rate
	}
	return serve.RateLimits{
		Refused: limits.Refused,
		Clock:   limits.Clock,
		Of: func(r *http.Request, principal any) (string, serve.Rate) {
			if len(keys) == 0 {
				host, _, err := net.SplitHostPort(r.RemoteAddr)
				if err != nil {
					host = r.RemoteAddr
				}
				return host, limits.Anonymous
			}
			who, _ := principal.(lifecycle.Principal)
			return who.Name, rates[who.Name]
		},
	}
}
