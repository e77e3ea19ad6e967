package enforcer

import (
	"slices"

	"sandbox.internal/egress/policy"
)

// Proposal returns the smallest policy that denies by default and allows what was seen to pass: the
// names that resolved, and the addresses that none of these names explains. Rules that deny stay,
// at the front, and what they deny is not proposed.
func (e *Enforcer) Proposal() policy.Policy {
	compiled := e.current()
	seen, _ := e.log.After(0)
	proposal := policy.Policy{DefaultAction: policy.Deny, Egress: []policy.Rule{}}
	for _, rule := range compiled.Policy().Egress {
		if rule.Action == policy.Deny {
			proposal.Egress = append(proposal.Egress, rule)
		}
	}
	var names, addresses []string
	for _, d := range seen {
		if d.Kind == KindName && proposable(d) && d.Resolved && !slices.Contains(names, d.Target) {
			names = append(names, d.Target)
		}
	}
	for _, d := range seen {
		explained := slices.ContainsFunc(d.Names, func(name string) bool { return slices.Contains(names, name) })
		if d.Kind == KindAddress && proposable(d) && !explained && !slices.Contains(addresses, d.Target) {
			addresses = append(addresses, d.Target)
		}
	}
	slices.Sort(names)
	slices.Sort(addresses)
	for _, target := range slices.Concat(names, addresses) {
		proposal.Egress = append(proposal.Egress, policy.Rule{Action: policy.Allow, Target: target})
	}
	return proposal
}

// proposable reports whether what was decided on passed, and no rule denies it: under a dry run
// everything passes.
func proposable(d Decision) bool {
	passed := d.Action == policy.Allow || d.DryRun
	byRule := d.Action == policy.Deny && d.Reason == policy.ByRule
	return passed && !byRule
}
