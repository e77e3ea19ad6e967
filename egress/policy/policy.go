// Package policy says what a sandbox may reach: the rules, how they are checked, and how a name or
// an address is decided. It is pure: it uses neither packets nor sockets nor time.
//
// Names and addresses are decided apart, each by the first rule of its kind that matches, else by
// the default. The addresses of an allowed name may be reached, unless a rule for addresses denies
// them ([Compiled.Resolved]).
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// ErrInvalid is what every error about a policy that breaks a rule is ([errors.Is]). The error's
// text names the field and the rule.
var ErrInvalid = errors.New("invalid policy")

// invalid is an error about a policy.
type invalid struct{ text string }

func (e *invalid) Error() string        { return e.text }
func (e *invalid) Is(target error) bool { return target == ErrInvalid }

func invalidf(format string, args ...any) error { return &invalid{fmt.Sprintf(format, args...)} }

// MaxRules is how many rules a policy may have.
const MaxRules = 4096

// Action says what becomes of traffic.
type Action string

// The actions.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// Policy is what a sandbox may reach. The zero value allows everything.
type Policy struct {
	// DefaultAction decides what no rule matches; empty means Allow.
	DefaultAction Action `json:"defaultAction,omitempty"`
	// Egress are the rules; the first that matches decides.
	Egress []Rule `json:"egress"`
	// DryRun lets everything pass and only records what would have been denied.
	DryRun bool `json:"dryRun"`
}

// Rule allows or denies one target: a domain name, a wildcard domain such as *.example.com, an IPv4
// address or a CIDR range.
type Rule struct {
	Action Action `json:"action"`
	Target string `json:"target"`
}

// Parse reads a policy from JSON. Unknown fields are errors, and so is whatever [Compile] refuses.
func Parse(data []byte) (Policy, error) {
	var p Policy
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return Policy{}, invalidf("must be JSON such as {\"defaultAction\":\"deny\",\"egress\":[]}: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Policy{}, invalidf("must be one JSON object and nothing behind it")
	}
	compiled, err := Compile(p)
	if err != nil {
		return Policy{}, err
	}
	return compiled.Policy(), nil
}

// Merge returns p with the rules: one whose target p has already takes its place, the others come
// first, in their order. Of several for one target the first counts, as in [Compile]. A rule that
// breaks the rules is an error.
func (p Policy) Merge(rules []Rule) (Policy, error) {
	kept := slices.Clone(p.Egress)
	var added []Rule
	seen := make(map[string]bool)
	for i, rule := range rules {
		t, err := check(rule)
		if err != nil {
			return Policy{}, invalidf("[%d].%v", i, err)
		}
		if seen[t.String()] {
			continue
		}
		seen[t.String()] = true
		same := func(other Rule) bool { return normal(other.Target) == t.String() }
		if at := slices.IndexFunc(kept, same); at >= 0 {
			kept[at] = rule
		} else {
			added = append(added, rule)
		}
	}
	p.Egress = append(added, kept...)
	return p, nil
}

// check parses the target of a rule. An error names the field.
func check(rule Rule) (target, error) {
	if rule.Action != Allow && rule.Action != Deny {
		return target{}, fmt.Errorf("action: must be allow or deny, got %q", rule.Action)
	}
	t, err := parseTarget(rule.Target)
	if err != nil {
		return target{}, fmt.Errorf("target: %w", err)
	}
	return t, nil
}

// Without returns p without the rules for the targets. A target that cannot be parsed is an error;
// one that no rule has is not.
func (p Policy) Without(targets []string) (Policy, error) {
	gone := make(map[string]bool)
	for i, text := range targets {
		t, err := parseTarget(text)
		if err != nil {
			return Policy{}, invalidf("[%d]: %v", i, err)
		}
		gone[t.String()] = true
	}
	p.Egress = slices.DeleteFunc(slices.Clone(p.Egress), func(r Rule) bool { return gone[normal(r.Target)] })
	return p, nil
}

func normal(text string) string {
	t, err := parseTarget(text)
	if err != nil {
		return text
	}
	return t.String()
}

// Reason says why something was decided.
type Reason string

// The reasons.
const (
	ByRule    Reason = "rule"    // the named rule
	ByDefault Reason = "default" // no rule matched
	ByName    Reason = "name"    // the address belongs to an allowed name
	ByAddress Reason = "address" // the name is allowed, its addresses are not
)

// Decision is what becomes of a name or an address, and why.
type Decision struct {
	Action Action
	Reason Reason
	Rule   string // the target of the rule that decided; empty unless Reason is ByRule
}

// Allowed reports whether the action is Allow.
func (d Decision) Allowed() bool { return d.Action == Allow }

// Range is a range of IPv4 addresses, both ends included, and what becomes of them.
type Range struct {
	First, Last netip.Addr
	Action      Action
}
