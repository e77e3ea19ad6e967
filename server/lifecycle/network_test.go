package lifecycle_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestNetworkPolicyValidate(t *testing.T) {
	one := func(action, target string) *lifecycle.NetworkPolicy {
		return &lifecycle.NetworkPolicy{Egress: []lifecycle.EgressRule{{Action: action, Target: target}}}
	}
	for _, target := range []string{"example.com", "Example.COM.", "*.example.com", "_a.b-c.example", "localhost", "192.0.2.1", "10.0.0.0/8", "10.1.2.3/8", "xn--e1afmkfd.example"} {
		if err := one("allow", target).Validate(); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"", ".", "*", "*.", "a..b", "*.*.example", "a.*.example", "exa mple", "1.2.3", "1.2.3.4.5", "10.0.0.0/33", "10.0.0.0/", "a/8",
		"::1", "2001:db8::/32", "::ffff:192.0.2.1", "http://example.com", "example.com:443", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 130) + "example"} {
		wantInvalid(t, target, one("deny", target).Validate(), "networkPolicy.egress[0].target")
	}
	wantInvalid(t, "action", one("maybe", "example.com").Validate(), "networkPolicy.egress[0].action")
	wantInvalid(t, "default", (&lifecycle.NetworkPolicy{DefaultAction: "drop"}).Validate(), "networkPolicy.defaultAction")
	many := &lifecycle.NetworkPolicy{Egress: make([]lifecycle.EgressRule, lifecycle.MaxEgressRules+1)}
	wantInvalid(t, "too many", many.Validate(), "networkPolicy.egress: must have at most 4096 rules")
	if err := (*lifecycle.NetworkPolicy)(nil).Validate(); err != nil {
		t.Error(err)
	}
}

func wantInvalid(t *testing.T, name string, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), says) {
		t.Errorf("%q: %v, want it to say %s", name, err, says)
	}
}
