package tasks

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
)

// ChallengeHeader is the header in which an executor that has the controller's public key sends its
// challenge with every 401: at most maxChallenge bytes of visible ASCII. A proof holds for this
// challenge alone. The executor makes another one at its start and at each reset, so that what one
// user of a pod has seen of a proof is worth nothing once the pod serves the next one.
const ChallengeHeader = "X-Task-Executor-Challenge"

// maxChallenge bounds a challenge in bytes.
const maxChallenge = 64

// proofContext keeps a proof from being taken for a signature over something else.
const proofContext = "sandbox.internal task-executor v1"

// Prove returns the token, for TokenHeader, that opens the executor of the pod with this UID while
// it has this challenge. It reveals nothing about the key, and opens no other pod.
func Prove(key ed25519.PrivateKey, pod, challenge string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, proofMessage(pod, challenge)))
}

// Proven reports whether the token was made by Prove with the private part of the key, for this pod
// and challenge.
func Proven(key ed25519.PublicKey, pod, challenge, token string) bool {
	if len(token) != base64.RawURLEncoding.EncodedLen(ed25519.SignatureSize) {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(token)
	return err == nil && ed25519.Verify(key, proofMessage(pod, challenge), signature)
}

func proofMessage(pod, challenge string) []byte {
	return fmt.Appendf(nil, "%s\x00%s\x00%s", proofContext, pod, challenge)
}

// FormatKey is the text form of a public key, which ParseKey reads: base64.
func FormatKey(key ed25519.PublicKey) string { return base64.StdEncoding.EncodeToString(key) }

// ParseKey reads what FormatKey writes.
func ParseKey(text string) (ed25519.PublicKey, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("must be %d bytes in base64", ed25519.PublicKeySize)
	}
	return key, nil
}
