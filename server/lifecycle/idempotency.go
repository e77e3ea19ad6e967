package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"
)

// IdempotencyWindow is how long a repeated Idempotency-Key returns the sandbox of the first
// request.
const IdempotencyWindow = 24 * time.Hour

// ErrKeyInUse is wrapped by a store's error when an owner's idempotency key is taken and still
// within the [IdempotencyWindow]: another request with the same key came first, and its sandbox is
// the answer to both.
var ErrKeyInUse = errors.New("idempotency key is in use")

// IdempotencyKey records which sandbox answered the first request with a client's Idempotency-Key.
type IdempotencyKey struct {
	Owner     string // name of the API key that asked; two owners may use the same Key
	Key       string // as the client sent it
	Digest    string // [Spec.Digest] of the first request
	SandboxID string
	CreatedAt time.Time
}

// Digest identifies what a client asked for: two specs have the same digest only when they ask for
// the same. It is the SHA-256 of the spec's JSON, in hexadecimal. The password for the image's
// registry is left out, because the digest is stored, and a reader of the store could try passwords
// until one fits.
func (s *Spec) Digest() string {
	// The spec's JSON leaves the credentials out.
	canonical := struct {
		Spec
		Username *string
	}{Spec: *s}
	if s.Auth != nil {
		canonical.Username = &s.Auth.Username
	}
	hash := sha256.New()
	// Strings, numbers and maps of strings always encode, in one way only, and a hash takes every
	// write.
	_ = json.NewEncoder(hash).Encode(canonical)
	return hex.EncodeToString(hash.Sum(nil))
}
