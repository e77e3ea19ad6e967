package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/lifecycle"
)

// apiKeys returns the keys that are let in. server.api_key is one administrator's key.
func apiKeys(cfg config.Server) ([]api.Key, error) {
	var keys []api.Key
	if cfg.APIKey != "" {
		keys = append(keys, api.Key{Name: "server.api_key", Digest: sha256.Sum256([]byte(cfg.APIKey)), Role: lifecycle.RoleAdmin})
	}
	for _, entry := range cfg.Keys {
		key := api.Key{Name: entry.Name, Role: lifecycle.Role(entry.Role)}
		digest, err := hex.DecodeString(entry.SHA256)
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("server.keys %q: sha256 is not a SHA-256 digest in hexadecimal", entry.Name)
		}
		copy(key.Digest[:], digest)
		keys = append(keys, key)
	}
	return keys, nil
}
