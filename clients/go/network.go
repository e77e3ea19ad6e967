package sandbox

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"sandbox.internal/clients/go/lifecycle"
)

// Network is what a sandbox may reach, and what it reached. It needs a service whose sandboxes have
// an egress sidecar; without one every call is [ErrConflict].
type Network struct{ box *Sandbox }

// ErrEmptyPolicy refuses a policy without a default action and rules before it is sent. The service
// takes it for one that allows everything, which whoever forgot to fill it in did not mean: leave
// the policy of a create out, or set DefaultAction to Allow.
var ErrEmptyPolicy = errors.New("networkPolicy: must have a defaultAction or egress rules: an empty one would allow everything")

// checkPolicy returns ErrEmptyPolicy for a policy that is there and empty.
func checkPolicy(policy *NetworkPolicy) error {
	if policy != nil && policy.DefaultAction == nil && len(policy.Egress) == 0 {
		return ErrEmptyPolicy
	}
	return nil
}

// Policy returns the policy in force.
func (n Network) Policy(ctx context.Context) (NetworkPolicy, error) {
	return n.change(ctx, func(ctx context.Context) (*http.Response, error) {
		return n.box.client.service.GetNetworkPolicy(ctx, n.box.id)
	})
}

// SetPolicy replaces the policy. It holds when the answer arrives, for open connections too. An
// empty one is [ErrEmptyPolicy].
func (n Network) SetPolicy(ctx context.Context, policy NetworkPolicy) (NetworkPolicy, error) {
	if err := checkPolicy(&policy); err != nil {
		return NetworkPolicy{}, err
	}
	return n.change(ctx, func(ctx context.Context) (*http.Response, error) {
		return n.box.client.service.ReplaceNetworkPolicy(ctx, n.box.id, policy)
	})
}

// Allow puts rules that allow the targets before all others: names, wildcard names such as
// *.example.com, addresses or ranges of them.
func (n Network) Allow(ctx context.Context, targets ...string) (NetworkPolicy, error) {
	return n.Merge(ctx, rulesFor(Allow, targets)...)
}

// Deny puts rules that deny the targets before all others.
func (n Network) Deny(ctx context.Context, targets ...string) (NetworkPolicy, error) {
	return n.Merge(ctx, rulesFor(Deny, targets)...)
}

func rulesFor(action NetworkAction, targets []string) []EgressRule {
	rules := make([]EgressRule, 0, len(targets))
	for _, target := range targets {
		rules = append(rules, EgressRule{Action: action, Target: target})
	}
	return rules
}

// Merge adds rules, or replaces those with the same target.
func (n Network) Merge(ctx context.Context, rules ...EgressRule) (NetworkPolicy, error) {
	return n.change(ctx, func(ctx context.Context) (*http.Response, error) {
		return n.box.client.service.MergeNetworkPolicyRules(ctx, n.box.id, rules)
	})
}

// Forget removes the rules of the targets.
func (n Network) Forget(ctx context.Context, targets ...string) (NetworkPolicy, error) {
	return n.change(ctx, func(ctx context.Context) (*http.Response, error) {
		return n.box.client.service.DeleteNetworkPolicyRules(ctx, n.box.id, targets)
	})
}

// Propose returns the smallest policy that allows what the sandbox reached so far.
func (n Network) Propose(ctx context.Context) (NetworkPolicy, error) {
	return n.change(ctx, func(ctx context.Context) (*http.Response, error) {
		return n.box.client.service.ProposeNetworkPolicy(ctx, n.box.id)
	})
}

// change sends a request whose answer is a policy. Each may be repeated.
func (n Network) change(ctx context.Context,
	request func(context.Context) (*http.Response, error)) (NetworkPolicy, error) {
	var policy NetworkPolicy
	err := n.box.client.call(ctx, repeatable, &policy, request)
	return policy, err
}

// Decisions returns what was allowed and denied so far, the newest last.
func (n Network) Decisions(ctx context.Context) ([]NetworkDecision, error) {
	var list lifecycle.NetworkDecisionList
	err := n.box.client.call(ctx, repeatable, &list,
		func(ctx context.Context) (*http.Response, error) {
			return n.box.client.service.ListNetworkDecisions(ctx, n.box.id, nil, asJSON)
		})
	return list.Items, err
}

// WatchDecisions yields what was allowed and denied, and each decision again when its count grows.
func (n Network) WatchDecisions(ctx context.Context) iter.Seq2[NetworkDecision, error] {
	return events(ctx, &follower{
		client: n.box.client, what: "network decisions of sandbox " + n.box.id, endless: true,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return n.box.client.service.ListNetworkDecisions(ctx, n.box.id,
				&lifecycle.ListNetworkDecisionsParams{LastEventID: optional(last)}, asStream)
		},
	}, func(NetworkDecision) bool { return false })
}
