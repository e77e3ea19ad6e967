// Package claims is what the controller of a cluster and a waiting execd share about claims
// (openapi/execd.yaml, claim).
package claims

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// Headers of the execd contract.
const (
	TokenHeader  = "X-EXECD-ACCESS-TOKEN"
	ProofHeader  = "X-EXECD-CLAIM-PROOF"
	DigestHeader = "Repr-Digest"
)

// The variables of a waiting container: the public key of who may claim it (tasks.FormatKey), and
// the UID of its pod.
const (
	KeyVariable = "EXECD_CLAIM_KEY"
	PodVariable = "EXECD_CLAIM_POD"
)

// MaxBody bounds the body of a claim, in bytes. Arguments and variables of a program may have 2 MiB
// together on Linux, and as JSON six bytes for one.
const MaxBody = 12 << 20

// Claim is the body of a claim.
type Claim struct {
	Entrypoint []string          `json:"entrypoint"`
	Env        map[string]string `json:"env,omitempty"`
}

// proofContext keeps a proof from being taken for a signature over something else: the same key
// opens task-executors.
const proofContext = "execd claim 1"

// Digest is the value of DigestHeader for a body.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// Prove signs a claim of the pod with this UID, which hands over the token and has a body of this
// digest. The signature is worth nothing for another pod, and nothing for this one once it was
// claimed.
func Prove(key ed25519.PrivateKey, pod, token, digest string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, message(pod, token, digest)))
}

// Proven reports whether Prove has made the proof with the private part of the key, for the same
// pod, token and digest.
func Proven(key ed25519.PublicKey, pod, token, digest, proof string) bool {
	if len(proof) != base64.RawURLEncoding.EncodedLen(ed25519.SignatureSize) {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(proof)
	return err == nil && ed25519.Verify(key, message(pod, token, digest), signature)
}

func message(pod, token, digest string) []byte {
	return []byte(strings.Join([]string{proofContext, pod, token, digest}, "\x00"))
}
