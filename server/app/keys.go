package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/console"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// openKeys returns the keys that are let in: those of the configuration, and on one machine those
// of the store.
func (a *App) openKeys(ctx context.Context, cfg config.Server) (*keys.Ring, error) {
	configured, err := apiKeys(cfg)
	if err != nil {
		return nil, err
	}
	options := keys.Options{
		Configured: configured, Rate: rate(cfg.RateLimit.Default()), Bounds: bounds("server.limits", cfg.Limits), Clock: time.Now, Logger: a.logger,
		Unsupported: "this service keeps no API keys: on a cluster its replicas have those of its configuration alone (server.api_key, server.keys)",
	}
	if a.machine.store != nil {
		options.Store = a.machine.store
	}
	return keys.New(ctx, options)
}

// apiKeys returns the keys of the configuration. server.api_key is one administrator's key.
func apiKeys(cfg config.Server) ([]keys.Key, error) {
	var all []keys.Key
	usual, limited := rate(cfg.RateLimit.Default()), bounds("server.limits", cfg.Limits)
	if err := limited.Validate(); err != nil {
		return nil, err
	}
	if cfg.APIKeyFile != "" && cfg.APIKey == "" {
		return nil, fmt.Errorf("server.api_key_file %q has not been read: only config.Load does", cfg.APIKeyFile)
	}
	if cfg.APIKey != "" {
		all = append(all, keys.Key{Name: "server.api_key", Digest: sha256.Sum256([]byte(cfg.APIKey)), Role: lifecycle.RoleAdmin, Rate: usual, Bounds: limited})
	}
	for _, entry := range cfg.Keys {
		key := keys.Key{
			Name: entry.Name, Role: lifecycle.Role(entry.Role), Rate: usual, MaxSandboxes: entry.MaxSandboxes, Bounds: limited, Own: ownLimits(entry),
		}
		if own := entry.RateLimit; own != nil {
			key.Rate = rate(*own)
			key.OwnRate = &lifecycle.KeyRate{PerSecond: own.RequestsPerSecond, Burst: own.Burst}
		}
		if entry.Limits != nil {
			key.Bounds = bounds("server.keys.limits", entry.Limits.Over(cfg.Limits))
			if err := key.Bounds.Validate(); err != nil {
				return nil, fmt.Errorf("server.keys %q: %w", entry.Name, err)
			}
		}
		digest, err := hex.DecodeString(entry.SHA256)
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("server.keys %q: sha256 is not a SHA-256 digest in hexadecimal", entry.Name)
		}
		copy(key.Digest[:], digest)
		all = append(all, key)
	}
	return all, nil
}

// ownLimits are the limits that an entry of server.keys has of its own.
func ownLimits(entry config.Key) lifecycle.KeyLimits {
	var own config.Limits
	if entry.Limits != nil {
		own = *entry.Limits
	}
	return lifecycle.KeyLimits{
		MaxSandboxes: entry.MaxSandboxes, DefaultCPU: own.DefaultCPU, DefaultMemory: own.DefaultMemory, MaxCPU: own.MaxCPU, MaxMemory: own.MaxMemory,
		TotalCPU: own.TotalCPU, TotalMemory: own.TotalMemory, MaxTimeout: own.MaxTimeout.Duration(),
	}
}

// signingKeyName is the file in the directory of the records that holds the key which signs
// endpoints, unless the configuration names one.
const signingKeyName = "signing.key"

// signingKeys returns the keys that sign endpoints. The directory of the records is this process's
// own by now.
//
// On a cluster a key of the process's own would be known to no other replica, so without one in the
// configuration nothing is signed.
func signingKeys(cfg config.Config) (keys reach.Keys, err error) {
	switch {
	case cfg.Server.SigningKey != "":
		keys, err = reach.LoadKeys(cfg.Server.SigningKey)
	case cfg.Runtime.Type == config.RuntimeKubernetes:
		return keys, nil
	default:
		keys, err = reach.LoadOrMakeKeys(filepath.Join(cfg.Server.DataDir, signingKeyName))
	}
	if err != nil {
		return keys, fmt.Errorf("server.signing_key: %w", err)
	}
	return keys, nil
}

// ingress returns the address at which clients reach sandboxes, as the API takes it.
func ingress(cfg config.Ingress) api.Ingress {
	if cfg.Mode != config.IngressGateway {
		return api.Ingress{}
	}
	address := cfg.Gateway.Address
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is6() { // as a URL has it
		address = "[" + address + "]"
	}
	return api.Ingress{Mode: string(cfg.Gateway.Route.Mode), Address: address}
}

// rate is a limit as the API takes it. Where the file names no burst, a second's requests may come
// at once.
func rate(limit config.RateLimit) serve.Rate {
	return keys.RateOf(lifecycle.KeyRate{PerSecond: limit.RequestsPerSecond, Burst: limit.Burst})
}

// limits are those that do not belong to one key.
func limits(server config.Server) api.Limits {
	cfg := server.RateLimit
	failed := cfg.FailedAttemptsPerMinute
	return api.Limits{
		Bounds:    bounds("server.limits", server.Limits),
		Anonymous: rate(cfg.Default()),
		Refused:   serve.Rate{PerSecond: float64(failed) / 60, Burst: failed},
	}
}

// sharedSessions is how replicas of the service share the console's sessions, nil where there is
// one service alone, or replicas have no key in common.
func sharedSessions(backend any, options api.Options) *console.Shared {
	marks, shared := backend.(console.Marks)
	key := options.Signing.Derive("sessions of the console")
	if !shared || key == nil {
		return nil
	}
	return &console.Shared{
		Key: key, Marks: marks,
		Fingerprint: func(principal lifecycle.Principal) (string, bool) {
			if options.Keys.Open() {
				return "", true
			}
			for _, known := range options.Keys.Configured() {
				if known.Name == principal.Name && known.Role == principal.Role {
					digest := sha256.Sum256(known.Digest[:])
					return hex.EncodeToString(digest[:8]), true
				}
			}
			return "", false
		},
	}
}

// bounds are limits as the domain takes them. section is where they are configured.
func bounds(section string, cfg config.Limits) lifecycle.Bounds {
	if cfg == (config.Limits{}) {
		return lifecycle.Bounds{}
	}
	return lifecycle.Bounds{
		Section: section, Default: resources(cfg.DefaultCPU, cfg.DefaultMemory), Max: resources(cfg.MaxCPU, cfg.MaxMemory),
		Total: resources(cfg.TotalCPU, cfg.TotalMemory), MaxTimeout: cfg.MaxTimeout.Duration(),
	}
}

func resources(cpu, memory string) lifecycle.ResourceLimits {
	limits := lifecycle.ResourceLimits{}
	for key, value := range map[string]string{"cpu": cpu, "memory": memory} {
		if value != "" {
			limits[key] = value
		}
	}
	return limits
}
