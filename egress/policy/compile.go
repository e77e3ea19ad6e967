package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// Compiled is a policy that was checked and is ready to decide. It never changes.
type Compiled struct {
	policy   Policy
	fallback Action
	exact    map[string]placed // by domain
	below    map[string]placed // wildcards, by the domain without "*."
	prefixes []addressRule
	ranges   []Range
}

// placed is a rule for names together with its place among the rules.
type placed struct {
	at     int
	action Action
}

type addressRule struct {
	action Action
	prefix netip.Prefix
	target string
}

// Compile checks a policy. Targets are brought to their normal form: lower case, no final dot,
// ranges without host bits. Of several rules for one target the first stays. An error is
// [ErrInvalid] and names the field.
func Compile(p Policy) (*Compiled, error) {
	c := &Compiled{fallback: Allow, exact: make(map[string]placed), below: make(map[string]placed)}
	switch p.DefaultAction {
	case Allow, Deny:
		c.fallback = p.DefaultAction
	case "":
	default:
		return nil, invalidf("defaultAction: must be allow or deny, got %q", p.DefaultAction)
	}
	if len(p.Egress) > MaxRules {
		return nil, invalidf("egress: must have at most %d rules, has %d", MaxRules, len(p.Egress))
	}
	c.policy = Policy{DefaultAction: c.fallback, Egress: make([]Rule, 0, len(p.Egress)), DryRun: p.DryRun}
	seen := make(map[string]bool)
	for i, rule := range p.Egress {
		t, err := check(rule)
		if err != nil {
			return nil, invalidf("egress[%d].%v", i, err)
		}
		if seen[t.String()] {
			continue
		}
		seen[t.String()] = true
		c.policy.Egress = append(c.policy.Egress, Rule{rule.Action, t.String()})
		c.add(i, rule.Action, t)
	}
	c.ranges = rangesOf(c.prefixes)
	return c, nil
}

func (c *Compiled) add(at int, action Action, t target) {
	switch {
	case t.isAddress():
		c.prefixes = append(c.prefixes, addressRule{action, t.prefix, t.String()})
	case t.wildcard:
		c.below[t.domain] = placed{at, action}
	default:
		c.exact[t.domain] = placed{at, action}
	}
}

// Policy returns the policy in its normal form. The caller owns it.
func (c *Compiled) Policy() Policy {
	p := c.policy
	p.Egress = slices.Clone(p.Egress)
	return p
}

// Default returns the action for what no rule matches.
func (c *Compiled) Default() Action { return c.fallback }

// DryRun reports whether everything passes and is only recorded.
func (c *Compiled) DryRun() bool { return c.policy.DryRun }

// Ranges returns what the rules for addresses say, as ranges in ascending order that neither
// overlap nor, when they have the same action, touch. Addresses in no range get the default. The
// caller must not change them.
func (c *Compiled) Ranges() []Range { return c.ranges }

// Name decides a name in its normal form ([NormalName]). It costs one look-up for each of the
// name's labels.
func (c *Compiled) Name(name string) Decision {
	best, found := c.exact[name]
	rule := name
	for rest := name; ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			break
		}
		if wild, ok := c.below[parent]; ok && (!found || wild.at < best.at) {
			best, found, rule = wild, true, "*."+parent
		}
		rest = parent
	}
	if !found {
		return Decision{Action: c.fallback, Reason: ByDefault}
	}
	return Decision{Action: best.action, Reason: ByRule, Rule: rule}
}

// Address decides an address by the rules for addresses alone.
func (c *Compiled) Address(addr netip.Addr) Decision {
	addr = addr.Unmap()
	for _, rule := range c.prefixes {
		if rule.prefix.Contains(addr) {
			return Decision{Action: rule.action, Reason: ByRule, Rule: rule.target}
		}
	}
	return Decision{Action: c.fallback, Reason: ByDefault}
}

// Resolved decides an address that an allowed name resolved to. A rule for addresses wins over the
// name. Without one, the name allows it, unless it is an address that names of the outside have no
// business with while the default is to deny: the machine's own, link-local ones with the metadata
// services of clouds, and those that are no host's.
func (c *Compiled) Resolved(addr netip.Addr, own func(netip.Addr) bool) Decision {
	addr = addr.Unmap()
	d := c.Address(addr)
	if d.Reason == ByRule {
		return d
	}
	if c.fallback == Deny && (!addr.Is4() || special(addr) || own(addr)) {
		return d
	}
	return Decision{Action: Allow, Reason: ByName}
}

func special(addr netip.Addr) bool {
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() ||
		addr.As4()[0] == 0 || addr.As4()[0] >= 240
}
