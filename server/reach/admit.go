package reach

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// Visit is a request to a port of a sandbox that no API key lets in: a token, or a signature of the
// port, has to.
type Visit struct {
	ID   string
	Port int
	// Token is the sandbox's; without one nothing lets in. Sent is what the request carries, empty
	// where a token does not count.
	Token, Sent string
	// Signatures are those that count: cookies only where each port has a host of its own.
	Signatures Signatures
}

// Way is what let a request in.
type Way string

// The ways that are no API key.
const (
	ByToken     Way = "token"
	BySignature Way = "signature"
	ByCookie    Way = "cookie"
)

// Pass is how a request was let in.
type Pass struct {
	By        Way
	Signature string    // of [BySignature]
	Until     time.Time // when that signature ends
}

// Admit lets a request in that carries the sandbox's token or a signature of the port, or returns
// [serve.Unauthorized]. A token that was sent decides alone.
func (k Keys) Admit(v Visit, now time.Time) (Pass, error) {
	if v.Sent != "" {
		if v.Token == "" || !Equal(v.Sent, v.Token) {
			return Pass{}, serve.Unauthorized("header %s: is not this sandbox's token", lifecycle.TokenHeader)
		}
		return Pass{By: ByToken}, nil
	}
	failure := serve.Unauthorized("header %s, or query parameter %s: is required; the endpoint of the port has it", lifecycle.TokenHeader, SignatureName)
	for _, signature := range v.Signatures.Query {
		until, err := k.Verify(signature, v.ID, v.Token, v.Port, now)
		if err == nil {
			return Pass{By: BySignature, Signature: signature, Until: until}, nil
		}
		failure = serve.Unauthorized("query parameter %s: %v", SignatureName, err)
	}
	for _, signature := range v.Signatures.Cookies {
		_, err := k.Verify(signature, v.ID, v.Token, v.Port, now)
		if err == nil {
			return Pass{By: ByCookie}, nil
		}
		failure = serve.Unauthorized("cookie %s: %v", SignatureName, err)
	}
	return Pass{}, failure
}

// Equal compares two secrets; how long it takes depends on neither.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
