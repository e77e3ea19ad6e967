package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sandbox.internal/egress/policy"
)

// The reference decides by looking at one rule after the other, with nothing prepared.

func referenceName(p policy.Policy, name string) policy.Action {
	for _, rule := range p.Egress {
		target := strings.ToLower(strings.TrimSuffix(rule.Target, "."))
		parent, wildcard := strings.CutPrefix(target, "*.")
		if wildcard && strings.HasSuffix(name, "."+parent) || !wildcard && name == target {
			return rule.Action
		}
	}
	return fallback(p)
}

func referenceAddress(p policy.Policy, addr netip.Addr) (policy.Action, bool) {
	for _, rule := range p.Egress {
		prefix, err := netip.ParsePrefix(rule.Target)
		if err != nil {
			only, err := netip.ParseAddr(rule.Target)
			if err != nil {
				continue
			}
			prefix = netip.PrefixFrom(only, 32)
		}
		if prefix.Contains(addr) {
			return rule.Action, true
		}
	}
	return fallback(p), false
}

func fallback(p policy.Policy) policy.Action {
	if p.DefaultAction == "" {
		return policy.Allow
	}
	return p.DefaultAction
}

// Few labels and few addresses, so that rules overlap.
var (
	actions = rapid.SampledFrom([]policy.Action{policy.Allow, policy.Deny})
	labels  = rapid.SampledFrom([]string{"a", "b", "c-1", "_d"})
	names   = rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(labels, 1, 4).Draw(t, "labels"), ".")
	})
	addresses = rapid.Custom(func(t *rapid.T) netip.Addr {
		edge := rapid.SampledFrom([]byte{0, 1, 127, 128, 254, 255})
		return netip.AddrFrom4([4]byte{edge.Draw(t, "1"), edge.Draw(t, "2"), edge.Draw(t, "3"), edge.Draw(t, "4")})
	})
	targets = rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return names.Draw(t, "name")
		case 1:
			return "*." + names.Draw(t, "name")
		case 2:
			return addresses.Draw(t, "address").String()
		}
		return fmt.Sprintf("%s/%d", addresses.Draw(t, "address"), rapid.IntRange(0, 32).Draw(t, "bits"))
	})
	ruleLists = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) policy.Rule {
		return policy.Rule{Action: actions.Draw(t, "action"), Target: targets.Draw(t, "target")}
	}), 0, 12)
	policies = rapid.Custom(func(t *rapid.T) policy.Policy {
		return policy.Policy{
			DefaultAction: rapid.SampledFrom([]policy.Action{"", policy.Allow, policy.Deny}).Draw(t, "default"),
			Egress:        ruleLists.Draw(t, "rules"),
		}
	})
)

func compile(t *rapid.T, p policy.Policy) *policy.Compiled {
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func TestNamesAreDecidedLikeTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, name := policies.Draw(t, "policy"), names.Draw(t, "asked")
		got := compile(t, p).Name(name)
		if want := referenceName(p, name); got.Action != want {
			t.Fatalf("%s: got %+v, want %s", name, got, want)
		}
		if got.Reason == policy.ByRule {
			only := compile(t, policy.Policy{DefaultAction: opposite(got.Action), Egress: []policy.Rule{{Action: got.Action, Target: got.Rule}}})
			if only.Name(name).Action != got.Action {
				t.Fatalf("%s: the rule %q that is said to decide does not match", name, got.Rule)
			}
		}
	})
}

func opposite(a policy.Action) policy.Action {
	if a == policy.Allow {
		return policy.Deny
	}
	return policy.Allow
}

func TestAddressesAndRangesAreDecidedLikeTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, addr := policies.Draw(t, "policy"), addresses.Draw(t, "address")
		compiled := compile(t, p)
		want, byRule := referenceAddress(p, addr)
		if got := compiled.Address(addr); got.Action != want || byRule != (got.Reason == policy.ByRule) {
			t.Fatalf("%s: got %+v, want %s", addr, got, want)
		}
		in := slices.IndexFunc(compiled.Ranges(), func(r policy.Range) bool {
			return r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
		})
		if byRule != (in >= 0) {
			t.Fatalf("%s: decided by a rule is %t, range is %d of %v", addr, byRule, in, compiled.Ranges())
		}
		if byRule && compiled.Ranges()[in].Action != want {
			t.Fatalf("%s: its range is %+v, want %s", addr, compiled.Ranges()[in], want)
		}
	})
}

func TestRangesAreInOrderAndApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := compile(t, policies.Draw(t, "policy")).Ranges()
		for i, r := range ranges {
			if r.First.Compare(r.Last) > 0 {
				t.Fatalf("%+v ends before it begins", r)
			}
			if i == 0 {
				continue
			}
			before := ranges[i-1]
			if before.Last.Compare(r.First) >= 0 || before.Action == r.Action && before.Last.Next() == r.First {
				t.Fatalf("%+v and %+v overlap or are one", before, r)
			}
		}
	})
}

func TestTheNormalFormDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, name, addr := policies.Draw(t, "policy"), names.Draw(t, "name"), addresses.Draw(t, "address")
		first := compile(t, p)
		second := compile(t, first.Policy())
		if first.Name(name) != second.Name(name) || first.Address(addr) != second.Address(addr) {
			t.Fatalf("%+v decides otherwise in its normal form %+v", p, first.Policy())
		}
		if !slices.Equal(first.Policy().Egress, second.Policy().Egress) {
			t.Fatalf("the normal form %+v has another: %+v", first.Policy(), second.Policy())
		}
	})
}

// A name never opens what a rule denies, wherever the rule stands, nor a special address under a
// default that denies.
func TestNoNameOpensADeniedAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, addr := policies.Draw(t, "policy"), addresses.Draw(t, "address")
		mine := addresses.Draw(t, "own")
		got := compile(t, p).Resolved(addr, func(a netip.Addr) bool { return a == mine })
		action, byRule := referenceAddress(p, addr)
		bytes := addr.As4()
		noHost := bytes[0] == 0 || bytes[0] == 127 || bytes[0] >= 224 || bytes[0] == 169 && bytes[1] == 254
		switch want := byRule && action == policy.Allow || !byRule && (fallback(p) == policy.Allow || !noHost && addr != mine); {
		case got.Allowed() != want:
			t.Fatalf("%s (own %s): got %+v, want allowed %t", addr, mine, got, want)
		}
	})
}

func TestMergeAndWithout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := compile(t, policies.Draw(t, "policy")).Policy()
		rules := compile(t, policy.Policy{Egress: ruleLists.Draw(t, "merged")}).Policy().Egress
		merged, err := before.Merge(rules)
		if err != nil {
			t.Fatal(err)
		}
		// Same target replaced in its place, new ones first in their order.
		var want []policy.Rule
		for _, rule := range rules {
			if !slices.ContainsFunc(before.Egress, func(r policy.Rule) bool { return r.Target == rule.Target }) {
				want = append(want, rule)
			}
		}
		for _, rule := range before.Egress {
			if at := slices.IndexFunc(rules, func(r policy.Rule) bool { return r.Target == rule.Target }); at >= 0 {
				rule = rules[at]
			}
			want = append(want, rule)
		}
		if !slices.Equal(merged.Egress, want) {
			t.Fatalf("got %v, want %v", merged.Egress, want)
		}
		var gone []string
		for _, rule := range rules {
			gone = append(gone, strings.ToUpper(rule.Target))
		}
		left, err := merged.Without(gone)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range left.Egress {
			if slices.ContainsFunc(rules, func(r policy.Rule) bool { return r.Target == rule.Target }) {
				t.Fatalf("%v is still there", rule)
			}
		}
	})
}

// TestMergeOfOneTargetTwice: the first rule counts, as in a policy that is replaced.
func TestMergeOfOneTargetTwice(t *testing.T) {
	rules := []policy.Rule{{Action: policy.Deny, Target: "a.test"}, {Action: policy.Allow, Target: "A.test."}}
	for _, before := range [][]policy.Rule{nil, {{Action: policy.Allow, Target: "a.test"}}} {
		merged, err := (policy.Policy{Egress: before}).Merge(rules)
		if err != nil {
			t.Fatal(err)
		}
		if want := rules[:1]; !slices.Equal(merged.Egress, want) {
			t.Errorf("onto %v: got %v, want %v", before, merged.Egress, want)
		}
	}
}

func TestAnEmptyPolicyAllowsEverything(t *testing.T) {
	p, err := policy.Parse([]byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	if !compiled.Name("example.com").Allowed() || !compiled.Address(netip.MustParseAddr("192.0.2.1")).Allowed() || compiled.DryRun() {
		t.Errorf("the policy denies something: %+v", compiled.Policy())
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("a", 64)
	tests := map[string]string{ // by text: what the error must contain
		`{"defaultAction":"drop"}`:                                  `defaultAction: must be allow or deny, got "drop"`,
		`{"egress":[{"action":"allow"}]}`:                           "egress[0].target",
		`{"egress":[{"target":"a"}]}`:                               "egress[0].action: must be allow or deny",
		`{"egress":[{"action":"allow","target":"*."}]}`:             `egress[0].target: "*."`,
		`{"egress":[{"action":"allow","target":"*"}]}`:              "egress[0].target",
		`{"egress":[{"action":"allow","target":"a..b"}]}`:           "egress[0].target",
		`{"egress":[{"action":"allow","target":"a b"}]}`:            "egress[0].target",
		`{"egress":[{"action":"allow","target":"a.*.b"}]}`:          "egress[0].target",
		`{"egress":[{"action":"allow","target":"` + long + `"}]}`:   "egress[0].target",
		`{"egress":[{"action":"allow","target":"http://a/"}]}`:      "egress[0].target",
		`{"egress":[{"action":"allow","target":"a.b:443"}]}`:        "egress[0].target",
		`{"egress":[{"action":"allow","target":"1.2.3"}]}`:          "egress[0].target",
		`{"egress":[{"action":"allow","target":"256.1.1.1"}]}`:      "egress[0].target",
		`{"egress":[{"action":"allow","target":"1.2.3.4/33"}]}`:     "egress[0].target",
		`{"egress":[{"action":"allow","target":"2001:db8::/32"}]}`:  "IPv6",
		`{"egress":[{"action":"allow","target":"::1"}]}`:            "IPv6",
		`{"egress":[{"action":"allow","target":"::ffff:1.2.3.4"}]}`: "IPv6",
		`{"rules":[]}`: "rules",
		`{} {}`:        "one JSON object",
		`[]`:           "JSON",
		``:             "JSON",
	}
	for text, want := range tests {
		if _, err := policy.Parse([]byte(text)); !errors.Is(err, policy.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an invalid policy with %q", text, err, want)
		}
	}
	if _, err := (policy.Policy{}).Merge([]policy.Rule{{Action: "allow", Target: "a"}, {Action: "allow", Target: "-/"}}); !errors.Is(err, policy.ErrInvalid) || !strings.Contains(err.Error(), "[1].target") {
		t.Errorf("merging a bad rule gave %v", err)
	}
	if _, err := (policy.Policy{}).Without([]string{"*"}); !errors.Is(err, policy.ErrInvalid) || !strings.Contains(err.Error(), "[0]") {
		t.Errorf("deleting a bad target gave %v", err)
	}
	if _, err := policy.Compile(policy.Policy{Egress: make([]policy.Rule, policy.MaxRules+1)}); !errors.Is(err, policy.ErrInvalid) {
		t.Errorf("too many rules gave %v", err)
	}
}

// A dot inside a label is no border between labels.
func TestNamesThatCannotBeAllowed(t *testing.T) {
	for _, name := range []string{"", ".", `evil\.example.com.`, "a..b.", `a\032b.`, "ä.example.com.", strings.Repeat("a.", 127) + "aa."} {
		if normal, ok := policy.NormalName(name); ok {
			t.Errorf("%q is accepted as %q", name, normal)
		}
	}
	if normal, ok := policy.NormalName("WWW.Example.COM."); !ok || normal != "www.example.com" {
		t.Errorf("got %q, %t", normal, ok)
	}
}
