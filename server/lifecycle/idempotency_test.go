package lifecycle_test

import (
	"regexp"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestDigest(t *testing.T) {
	first, second := fullSpec(), fullSpec()
	first.Env = map[string]string{"A": "1", "B": "2", "C": "3"}
	second.Env = map[string]string{"C": "3", "B": "2", "A": "1"}
	if first.Digest() != second.Digest() {
		t.Error("two equal specs have different digests")
	}
	if got := first.Digest(); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(got) {
		t.Errorf("digest %q is not a SHA-256 in hexadecimal", got)
	}
}

// A stored digest must not help to guess a password.
func TestDigestKnowsNoPassword(t *testing.T) {
	first, second := fullSpec(), fullSpec()
	second.Auth.Password = "other"
	if first.Digest() != second.Digest() {
		t.Error("the digest depends on the password")
	}
}

func TestDigestTellsSpecsApart(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*lifecycle.Spec){
		"nothing":          func(*lifecycle.Spec) {},
		"image":            func(s *lifecycle.Spec) { s.Image = "other" },
		"no credentials":   func(s *lifecycle.Spec) { s.Auth = nil },
		"user name":        func(s *lifecycle.Spec) { s.Auth.Username = "other" },
		"timeout":          func(s *lifecycle.Spec) { s.Timeout += time.Second },
		"resources":        func(s *lifecycle.Spec) { s.Resources["cpu"] = "1000m" },
		"entrypoint":       func(s *lifecycle.Spec) { s.Entrypoint = []string{"sleep 60"} },
		"env":              func(s *lifecycle.Spec) { s.Env["A"] = "2" },
		"metadata":         func(s *lifecycle.Spec) { s.Metadata["name"] = "other" },
		"policy":           func(s *lifecycle.Spec) { s.NetworkPolicy.DefaultAction = "allow" },
		"rule":             func(s *lifecycle.Spec) { s.NetworkPolicy.Egress[0].Target = "example.org" },
		"volume":           func(s *lifecycle.Spec) { s.Volumes[0].ReadOnly = true },
		"extensions":       func(s *lifecycle.Spec) { s.Extensions = []byte(`{"a": 2}`) },
		"extensions' form": func(s *lifecycle.Spec) { s.Extensions = []byte(`{"a":1}`) },
		"no JSON at all":   func(s *lifecycle.Spec) { s.Extensions = []byte(`{`) },
		"no extensions":    func(s *lifecycle.Spec) { s.Extensions = nil },
	} {
		spec := fullSpec()
		change(&spec)
		digest := spec.Digest()
		if other, ok := seen[digest]; ok {
			t.Errorf("%q and %q have the same digest", name, other)
		}
		seen[digest] = name
	}
}
