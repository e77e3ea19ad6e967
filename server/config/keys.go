package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Role is what an API key may do.
type Role string

// The roles of [[server.keys]].
const (
	// RoleAdmin reads and changes every sandbox.
	RoleAdmin Role = "admin"
	// RoleUser reads and changes the sandboxes that its own key created.
	RoleUser Role = "user"
	// RoleViewer reads and changes nothing.
	RoleViewer Role = "viewer"
)

// Key is one entry of [[server.keys]]. The file holds only the digest, so that
// who reads the file cannot use the key.
type Key struct {
	// Name is what the key is called in logs and as the owner of sandboxes. It is unique, and none
	// of "server.api_key" (while that is set), "signed endpoint" and "token of the sandbox".
	Name string `toml:"name"`
	// SHA256 is the key's digest in 64 hexadecimal digits, unique: `printf %s "$KEY" | sha256sum`
	SHA256 string `toml:"sha256"`
	// Role is what the key may do: admin (everything), user (its own sandboxes) or viewer (read).
	Role Role `toml:"role"`
	// MaxSandboxes is how many sandboxes that have not ended the key may have, 0 to 1000000; 0 is
	// no limit. A create beyond it is 409.
	MaxSandboxes int `toml:"max_sandboxes"`
	// RateLimit replaces [server.rate_limit] for this key; nil leaves it.
	RateLimit *RateLimit `toml:"rate_limit"`
	// Limits replaces single keys of [server.limits] for this key; nil leaves all.
	Limits *Limits `toml:"limits"`
}

// ReservedNames returns what no key may be called, because the logs use these names for requests to
// ports that a signature or a sandbox's own token permits.
func ReservedNames() []string { return []string{"signed endpoint", "token of the sandbox"} }

// checkKeys also refuses a key that is listed twice, under whatever name:
// which of the two roles it has would depend on the order of the file.
func checkKeys(p *problems, keys []Key, apiKey string) {
	names := make(map[string]bool, len(keys))
	owners := make(map[string]string, len(keys)+1)
	if apiKey != "" {
		digest := sha256.Sum256([]byte(apiKey))
		owners[hex.EncodeToString(digest[:])] = "server.api_key"
		names["server.api_key"] = true // its name in the log, and as an owner
	}
	reserved := ReservedNames()
	for i, k := range keys {
		path := fmt.Sprintf("server.keys[%d]", i)
		switch {
		case strings.TrimSpace(k.Name) == "":
			p.add(path+".name", "is required")
		case slices.Contains(reserved, k.Name):
			p.add(path+".name",
				"must not be %q: the log and the audit log name requests to ports so that no key lets in", k.Name)
		case names[k.Name]:
			p.add(path+".name", "must be unique (%q is used by an earlier key)", k.Name)
		}
		names[k.Name] = true

		digest := strings.ToLower(k.SHA256)
		switch {
		case digest == "":
			p.add(path+".sha256", "is required")
		case !isDigest(digest):
			// The value is not shown: it may be the key itself, by mistake.
			p.add(path+".sha256", "must be the SHA-256 digest of the key in 64 hexadecimal digits")
		case owners[digest] != "":
			p.add(path+".sha256", "must be unique (it is the same key as %s)", owners[digest])
		default:
			owners[digest] = path
		}

		if k.Role == "" {
			p.add(path+".role", "is required (%s, %s or %s)", RoleAdmin, RoleUser, RoleViewer)
		} else {
			checkOneOf(p, path+".role", k.Role, RoleAdmin, RoleUser, RoleViewer)
		}

		checkLimit(p, path+".max_sandboxes", k.MaxSandboxes)
		if k.RateLimit != nil {
			k.RateLimit.check(p, path+".rate_limit")
		}
		if k.Limits != nil {
			k.Limits.check(p, path+".limits")
		}
	}
}

// isDigest reports whether s is a SHA-256 digest in hexadecimal.
func isDigest(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == sha256.Size
}
