// Package egress is the lifecycle service's client of egress sidecars (openapi/egress.yaml).
package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	gen "sandbox.internal/gen/egress"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// patience is how long a sidecar has to answer, and healthPatience how long to say that it is
	// there.
	patience       = 10 * time.Second
	healthPatience = 2 * time.Second
	// longestPolicy bounds what is read of one answer, in bytes.
	longestPolicy = 8 << 20
	// longestVariable is what one variable of a process may hold on every Linux (128 KiB with its
	// name), and some way below.
	longestVariable = 100 << 10
)

// Client asks sidecars. It may be used by several goroutines at once.
type Client struct {
	host    string
	http    *http.Client
	streams *http.Client // for what is passed on while it comes
}

// New returns a client of the sidecars whose ports are published on that host.
func New(host string) *Client {
	// A fresh connection for every question: a port may just have been taken over from another
	// sandbox's sidecar.
	return &Client{
		host:    host,
		http:    sandboxhttp.NewClient(sandboxhttp.Options{HeaderTimeout: patience, MaxAnswer: longestPolicy}),
		streams: sandboxhttp.NewClient(sandboxhttp.Options{HeaderTimeout: patience, MaxAnswer: sandboxhttp.Unbounded}),
	}
}

// Environment returns the variables that start a sidecar with that policy. A policy that no
// variable can hold is left out: the sidecar then lets nothing pass until Change, and whole is
// false.
func (c *Client) Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (env map[string]string, whole bool, err error) {
	first := lifecycle.NetworkPolicy{}
	if policy != nil {
		first = *policy
	}
	data, err := json.Marshal(fromPolicy(first))
	if err != nil {
		return nil, false, fmt.Errorf("encode the network policy: %w", err)
	}
	if whole = len(data) <= longestVariable; !whole {
		data = []byte(`{"defaultAction":"deny"}`)
	}
	env = map[string]string{"EGRESS_ACCESS_TOKEN": at.Token, "EGRESS_POLICY": string(data)}
	if at.Upstream != "" {
		env["EGRESS_UPSTREAM"] = at.Upstream
	}
	return env, whole, nil
}

// Health asks whether the firewall is installed, and returns how often the egress daemon had to be
// started again.
func (c *Client) Health(ctx context.Context, at lifecycle.Sidecar) (restarts int, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	client, err := c.of(at, c.http)
	if err != nil {
		return 0, err
	}
	var health gen.Health
	err = answered(client.GetHealth(ctx))(&health)
	return health.Restarts, err
}

// Policy returns the policy in force.
func (c *Client) Policy(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	return c.policy(ctx, at, func(ctx context.Context, client *gen.Client) (*http.Response, error) { return client.GetPolicy(ctx) })
}

// Propose returns the smallest allow-list for what was seen.
func (c *Client) Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	return c.policy(ctx, at, func(ctx context.Context, client *gen.Client) (*http.Response, error) {
		return client.ProposePolicy(ctx)
	})
}

// Change changes the policy and returns what it is then. It returns an Error of KindInvalid for a
// change that breaks a rule.
func (c *Client) Change(ctx context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	return c.policy(ctx, at, func(ctx context.Context, client *gen.Client) (*http.Response, error) {
		switch {
		case change.Replace != nil:
			return client.ReplacePolicy(ctx, fromPolicy(*change.Replace))
		case change.Merge != nil:
			return client.MergePolicyRules(ctx, fromRules(change.Merge))
		}
		return client.DeletePolicyRules(ctx, change.Remove)
	})
}

func (c *Client) policy(ctx context.Context, at lifecycle.Sidecar, ask func(context.Context, *gen.Client) (*http.Response, error)) (lifecycle.NetworkPolicy, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := c.of(at, c.http)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	var policy gen.Policy
	if err := answered(ask(ctx, client))(&policy); err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return toPolicy(policy), nil
}

// Decisions returns what was allowed and denied, as the sidecar writes it. The caller closes it.
func (c *Client) Decisions(ctx context.Context, at lifecycle.Sidecar, request lifecycle.DecisionsRequest) (io.ReadCloser, error) {
	client, err := c.of(at, c.streams)
	if err != nil {
		return nil, err
	}
	params := &gen.ListDecisionsParams{}
	if request.LastEventID != "" {
		params.LastEventID = &request.LastEventID
	}
	response, err := client.ListDecisions(ctx, params, func(_ context.Context, r *http.Request) error {
		if request.Follow {
			r.Header.Set("Accept", "text/event-stream")
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, refusal(response)
	}
	return response.Body, nil
}

// of returns the generated client for one sidecar.
func (c *Client) of(at lifecycle.Sidecar, through *http.Client) (*gen.Client, error) {
	if at.Port == 0 {
		return nil, unavailable(errors.New("the engine has not published its port"))
	}
	url := "http://" + net.JoinHostPort(c.host, strconv.Itoa(at.Port))
	return gen.NewClient(url, gen.WithHTTPClient(through), gen.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set(lifecycle.SidecarTokenHeader, at.Token)
		return nil
	}))
}

// answered reads an answer of 200 into a value.
func answered(response *http.Response, err error) func(into any) error {
	return func(into any) error {
		if err != nil {
			return unavailable(err)
		}
		if response.StatusCode != http.StatusOK {
			return refusal(response)
		}
		defer func() { _ = response.Body.Close() }()
		if err := json.NewDecoder(response.Body).Decode(into); err != nil {
			return unavailable(errors.New("response cannot be read"))
		}
		return nil
	}
}

// refusal returns the error for an answer that is none of 200, and closes it. A sidecar is not the
// sandbox's own, and says which rule a policy breaks; of any other answer nothing is repeated but
// its number.
func refusal(response *http.Response) error {
	defer func() { _ = response.Body.Close() }()
	var body gen.Error
	_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&body) // a body of another form leaves it empty
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return lifecycle.Invalidf("%s", sandboxhttp.Quote(body.Message))
	}
	return unavailable(fmt.Errorf("response has status %s", response.Status))
}

// unavailable is what a client gets; why is for the log.
func unavailable(why error) error {
	return fmt.Errorf("%w: %w", lifecycle.Unavailable("the egress sidecar of the sandbox"), why)
}

func toPolicy(p gen.Policy) lifecycle.NetworkPolicy {
	policy := lifecycle.NetworkPolicy{DryRun: p.DryRun != nil && *p.DryRun}
	if p.DefaultAction != nil {
		policy.DefaultAction = string(*p.DefaultAction)
	}
	if p.Egress != nil {
		for _, rule := range *p.Egress {
			policy.Egress = append(policy.Egress, lifecycle.EgressRule{Action: string(rule.Action), Target: rule.Target})
		}
	}
	return policy
}

func fromPolicy(p lifecycle.NetworkPolicy) gen.Policy {
	rules := fromRules(p.Egress)
	policy := gen.Policy{Egress: &rules, DryRun: &p.DryRun}
	if p.DefaultAction != "" {
		action := gen.NetworkAction(p.DefaultAction)
		policy.DefaultAction = &action
	}
	return policy
}

func fromRules(rules []lifecycle.EgressRule) []gen.EgressRule {
	out := make([]gen.EgressRule, len(rules))
	for i, rule := range rules {
		out[i] = gen.EgressRule{Action: gen.NetworkAction(rule.Action), Target: rule.Target}
	}
	return out
}
