package claims

import (
	"crypto/ed25519"
	"strings"
	"testing"
)

// TestProof: a proof holds for the key, pod, token and body that it was made for, and for nothing
// else.
func TestProof(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := Digest([]byte("{}"))
	proof := Prove(private, "pod", "token", digest)
	if !Proven(public, "pod", "token", digest, proof) {
		t.Error("the proof does not hold")
	}
	for name, holds := range map[string]bool{
		"another key":   Proven(other, "pod", "token", digest, proof),
		"another pod":   Proven(public, "other", "token", digest, proof),
		"another token": Proven(public, "pod", "other", digest, proof),
		"another body":  Proven(public, "pod", "token", Digest([]byte("[]")), proof),
		"moved bounds":  Proven(public, "pod\x00token", digest, "", proof),
		"cut":           Proven(public, "pod", "token", digest, proof[1:]),
		"none":          Proven(public, "pod", "token", digest, ""),
		"no base64":     Proven(public, "pod", "token", digest, strings.Repeat("!", len(proof))),
	} {
		if holds {
			t.Errorf("%s: the proof holds", name)
		}
	}
}
