package lifecycle

import (
	"net/netip"
	"slices"
	"strings"
)

// SidecarPort is the port of the egress sidecar's API, in the network that it shares with its
// sandbox.
const SidecarPort = 18080

// MaxEgressRules is how many rules a policy may have.
const MaxEgressRules = 4096

// NetworkPolicy says which outside hosts a sandbox may reach.
type NetworkPolicy struct {
	DefaultAction string // allow, deny or empty, which allows
	Egress        []EgressRule
	// DryRun lets everything pass, and only records what would have been denied.
	DryRun bool `json:",omitempty"`
}

// EgressRule allows or denies one target: a domain, a wildcard domain, an IPv4 address or a CIDR
// range.
type EgressRule struct {
	Action string // allow or deny
	Target string
}

// Clone returns a copy that shares nothing mutable with the policy.
func (p *NetworkPolicy) Clone() *NetworkPolicy {
	if p == nil {
		return nil
	}
	policy := *p
	policy.Egress = slices.Clone(policy.Egress)
	return &policy
}

// Validate returns an Error of KindInvalid that names the first field that breaks a rule. The
// egress sidecar accepts every policy that Validate accepts.
func (p *NetworkPolicy) Validate() error {
	if p == nil {
		return nil
	}
	if p.DefaultAction != "" && !isAction(p.DefaultAction) {
		return Invalidf("networkPolicy.defaultAction: must be allow or deny, got %.128q", p.DefaultAction)
	}
	if len(p.Egress) > MaxEgressRules {
		return Invalidf("networkPolicy.egress: must have at most %d rules, has %d", MaxEgressRules, len(p.Egress))
	}
	for i, rule := range p.Egress {
		switch {
		case !isAction(rule.Action):
			return Invalidf("networkPolicy.egress[%d].action: must be allow or deny, got %.128q", i, rule.Action)
		case !isTarget(rule.Target):
			return Invalidf("networkPolicy.egress[%d].target: must be a domain name, a wildcard domain such as *.example.com, an IPv4 address or a CIDR range of them, got %.300q",
				i, rule.Target)
		}
	}
	return nil
}

func isAction(s string) bool { return s == "allow" || s == "deny" }

func isTarget(s string) bool {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Is4()
	}
	if strings.Contains(s, "/") {
		prefix, err := netip.ParsePrefix(s)
		return err == nil && prefix.Addr().Is4()
	}
	return isDomain(strings.TrimPrefix(s, "*."))
}

// isDomain accepts names of letters, digits, hyphens and underscores. One whose last label is a
// number is a mistyped address.
func isDomain(name string) bool {
	const longestName, longestLabel = 253, 63
	name = strings.TrimSuffix(name, ".")
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > longestLabel || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
		last = label
	}
	return len(name) <= longestName && strings.Trim(last, "0123456789") != ""
}

// Sidecar is the egress sidecar beside a sandbox: a container of its own that owns the sandbox's
// network and alone may filter it.
type Sidecar struct {
	// Image is the reference of its image, as it was configured when the sandbox was accepted.
	Image string
	// Upstream are the name servers that it asks, with commas between; empty means those of its
	// host.
	Upstream string `json:",omitempty"`
	// Token is the secret that its API demands.
	Token string
	// Port is the host's port of its API, 0 before it is known.
	Port int
	// Restarts is how often its egress daemon had to be started again, as far as it is known.
	Restarts int `json:",omitempty"`
	// Silent is true when the egress daemon did not answer the last time: nothing passes.
	Silent bool `json:",omitempty"`
}

// PolicyChange changes a network policy. Exactly one of its fields is set.
type PolicyChange struct {
	Replace *NetworkPolicy // the whole policy
	Merge   []EgressRule   // rules that take the place of those with the same target, or come first
	Remove  []string       // targets of the rules to delete
}

// DecisionsRequest says in which form the decisions of an egress sidecar are wanted.
type DecisionsRequest struct {
	Follow      bool   // as server-sent events that go on, instead of one JSON document
	LastEventID string // the last event that the client saw; empty begins with what there is
}
