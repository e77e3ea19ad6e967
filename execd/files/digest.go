package files

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// formatDigest writes a SHA-256 sum as the value of a Repr-Digest header (RFC 9530).
func formatDigest(sum []byte) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":"
}

// parseDigest returns the SHA-256 sum in the value of a Repr-Digest header. Other algorithms beside
// it are left alone, but a value without SHA-256 is an error: taking it would promise a check that
// never happens.
func parseDigest(value string) ([]byte, error) {
	for member := range strings.SplitSeq(value, ",") {
		name, sum, _ := strings.Cut(strings.TrimSpace(member), "=")
		if name != "sha-256" {
			continue
		}
		inner, opened := strings.CutPrefix(sum, ":")
		inner, closed := strings.CutSuffix(inner, ":")
		raw, err := base64.StdEncoding.DecodeString(inner)
		if !opened || !closed || err != nil || len(raw) != sha256.Size {
			return nil, invalid("digest", "must be sha-256=:BASE64: of 32 bytes, got %q", member)
		}
		return raw, nil
	}
	return nil, invalid("digest", "must contain sha-256=:BASE64:, got %q", value)
}
