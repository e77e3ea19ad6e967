package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/lifecycle"
)

// apiKeys returns the keys that are let in. server.api_key is one administrator's key.
func apiKeys(cfg config.Server) ([]api.Key, error) {
	var keys []api.Key
	usual := rate(cfg.RateLimit.Default())
	if cfg.APIKey != "" {
		keys = append(keys, api.Key{Name: "server.api_key", Digest: sha256.Sum256([]byte(cfg.APIKey)), Role: lifecycle.RoleAdmin, Rate: usual})
	}
	for _, entry := range cfg.Keys {
		key := api.Key{Name: entry.Name, Role: lifecycle.Role(entry.Role), Rate: usual}
		if entry.RateLimit != nil {
			key.Rate = rate(*entry.RateLimit)
		}
		digest, err := hex.DecodeString(entry.SHA256)
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("server.keys %q: sha256 is not a SHA-256 digest in hexadecimal", entry.Name)
		}
		copy(key.Digest[:], digest)
		keys = append(keys, key)
	}
	return keys, nil
}

// rate is a limit as the API takes it. Where the file names no burst, a second's requests may come at once.
func rate(limit config.RateLimit) serve.Rate {
	burst := limit.Burst
	if burst == 0 {
		burst = limit.RequestsPerSecond
	}
	return serve.Rate{PerSecond: float64(limit.RequestsPerSecond), Burst: burst}
}

// limits are those that do not belong to one key.
func limits(cfg config.RateLimits) api.Limits {
	failed := cfg.FailedAttemptsPerMinute
	return api.Limits{
		Anonymous: rate(cfg.Default()),
		Refused:   serve.Rate{PerSecond: float64(failed) / 60, Burst: failed},
	}
}
