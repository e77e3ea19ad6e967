package sandboxhttp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// The headers of GET /ping (openapi/execd.yaml): what is asked of execd, and what it answers.
const (
	ChallengeHeader = "X-EXECD-CHALLENGE"
	ProofHeader     = "X-EXECD-PROOF"
)

// A challenge has so many hexadecimal digits.
const minChallenge, maxChallenge = 32, 128

// NewChallenge returns 64 random hexadecimal digits.
func NewChallenge() string {
	random := make([]byte, 32)
	rand.Read(random) // crypto/rand.Read never returns an error
	return hex.EncodeToString(random)
}

// Proof returns what the holder of a token answers to a challenge, 64 hexadecimal digits. It is
// empty without a token, and for what is no challenge: 32 to 128 lower-case hexadecimal digits.
func Proof(token, challenge string) string {
	if token == "" || len(challenge) < minChallenge || len(challenge) > maxChallenge {
		return ""
	}
	for _, c := range []byte(challenge) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	sum := hmac.New(sha256.New, []byte(token))
	sum.Write([]byte("execd ping 1\n" + challenge))
	return hex.EncodeToString(sum.Sum(nil))
}

// Proves reports whether a proof is the one for this challenge by the holder of this token. The
// time that it takes reveals nothing.
func Proves(proof, token, challenge string) bool {
	want := Proof(token, challenge)
	return want != "" && hmac.Equal([]byte(want), []byte(proof))
}
