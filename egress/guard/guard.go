// Package guard holds the policy in force: it decides names and addresses for the DNS proxy, adds to the wall the addresses that
// allowed names resolve to, changes the policy in one step, keeps it on disk, and records every decision.
package guard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/egress/policy"
	"sandbox.internal/egress/wall"
)

// ErrDenied says that an address must not be reached any more, although its name was allowed when it was asked for.
var ErrDenied = errors.New("denied by the policy that holds now")

// Wall is the packet filter.
type Wall interface {
	// Apply puts a policy into force, in one step. The learned addresses are these and no others from then on; of those that open connections
	// use, the ones stay for which keep returns true.
	Apply(compiled *policy.Compiled, keep func(netip.Addr) bool, learned []wall.Address) error
	// Learn makes addresses reachable and returns when they are.
	Learn(addresses []wall.Address) error
}

// Options configures a [Guard].
type Options struct {
	// Policy is in force already: the wall was built with it.
	Policy *policy.Compiled
	Wall   Wall
	// Store keeps the policy.
	Store *Store
	// Own returns a function that reports whether an address is one of the sandbox itself, for all decisions of one moment.
	Own    func() func(netip.Addr) bool
	Logger zerolog.Logger
	Clock  func() time.Time
}

// Guard is safe for concurrent use.
type Guard struct {
	options  Options
	log      *DecisionLog
	requests chan request
	changed  chan struct{} // one element stands for any number of changes of the policy

	mu       sync.Mutex // held while the policy changes or addresses are learned, so that these never cross
	compiled *policy.Compiled
	known    *addressTable

	view sync.RWMutex // protects what is read for every query
	now  *policy.Compiled
}

// New returns a guard. Addresses are learned while [Guard.Run] runs.
func New(options Options) *Guard {
	return &Guard{
		options: options, log: newDecisionLog(options.Clock), requests: make(chan request, maxBatch), changed: make(chan struct{}, 1),
		compiled: options.Policy, now: options.Policy, known: newAddressTable(),
	}
}

// Policy returns the policy in force, in its normal form.
func (g *Guard) Policy() policy.Policy { return g.current().Policy() }

func (g *Guard) current() *policy.Compiled {
	g.view.RLock()
	defer g.view.RUnlock()
	return g.now
}

// Replace puts another policy into force and returns it in its normal form. It holds when Replace returns. An error that is
// [policy.ErrInvalid] is about the policy given; after any error the policy is the one before.
func (g *Guard) Replace(p policy.Policy) (policy.Policy, error) {
	return g.change(func(policy.Policy) (policy.Policy, error) { return p, nil })
}

// Merge adds rules, as [policy.Policy.Merge] does, in one step.
func (g *Guard) Merge(rules []policy.Rule) (policy.Policy, error) {
	return g.change(func(p policy.Policy) (policy.Policy, error) { return p.Merge(rules) })
}

// Remove takes the rules for the targets away, in one step.
func (g *Guard) Remove(targets []string) (policy.Policy, error) {
	return g.change(func(p policy.Policy) (policy.Policy, error) { return p.Without(targets) })
}

func (g *Guard) change(next func(policy.Policy) (policy.Policy, error)) (policy.Policy, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		select {
		case g.changed <- struct{}{}:
		default:
		}
	}()
	before := g.compiled.Policy()
	wanted, err := next(before)
	if err != nil {
		return policy.Policy{}, err
	}
	compiled, err := policy.Compile(wanted)
	if err != nil {
		return policy.Policy{}, err
	}
	if err := g.options.Store.Save(compiled.Policy()); err != nil {
		return policy.Policy{}, err
	}
	now, own := g.options.Clock(), g.options.Own()
	allowed := func(addr netip.Addr, names []learnedName) bool {
		return compiled.Resolved(addr, own).Allowed() && anyAllowed(compiled, names)
	}
	keep := func(addr netip.Addr) bool { return allowed(addr, g.known.names(addr)) }
	valid := g.known.valid(now, allowed)
	if err := g.options.Wall.Apply(compiled, keep, valid); err != nil {
		return policy.Policy{}, errors.Join(err, g.options.Store.Save(before))
	}
	g.known.setInWall(valid)
	g.compiled = compiled
	g.view.Lock()
	g.now = compiled
	g.view.Unlock()
	p := compiled.Policy()
	g.options.Logger.Info().Str("default_action", string(p.DefaultAction)).Int("rules", len(p.Egress)).Bool("dry_run", p.DryRun).
		Msg("the policy has changed")
	return p, nil
}

func anyAllowed(compiled *policy.Compiled, names []learnedName) bool {
	return slices.ContainsFunc(names, func(name learnedName) bool { return name.allowed(compiled) })
}

// Name implements dnsproxy.Decider.
func (g *Guard) Name(name string) (policy.Decision, bool) {
	compiled := g.current()
	return compiled.Name(name), compiled.DryRun()
}

// Resolved implements dnsproxy.Decider.
func (g *Guard) Resolved(addr netip.Addr) policy.Decision {
	return g.current().Resolved(addr, g.options.Own())
}

// Decided implements dnsproxy.Decider.
func (g *Guard) Decided(name string, d policy.Decision, dryRun, resolved bool) {
	g.log.Add(Decision{
		Subject: Subject{Kind: KindName, Target: name, Action: d.Action, DryRun: dryRun},
		Reason:  d.Reason, Rule: d.Rule, Resolved: resolved,
	})
}

// Packet records a packet that the wall decided.
func (g *Guard) Packet(packet wall.Packet) {
	compiled := g.current()
	d := compiled.Address(packet.Addr)
	g.mu.Lock()
	names := latest(g.known.names(packet.Addr))
	g.mu.Unlock()
	switch {
	case d.Reason == policy.ByRule:
	case packet.Action == policy.Allow && compiled.Default() == policy.Deny:
		d = policy.Decision{Reason: policy.ByName}
	}
	g.log.Add(Decision{
		Subject: Subject{
			Kind: KindAddress, Target: packet.Addr.String(), Protocol: protocolName(packet.Protocol), Port: packet.Port,
			Action: packet.Action, DryRun: packet.DryRun,
		},
		Reason: d.Reason, Rule: d.Rule, Names: names,
	})
}

func protocolName(number uint8) string {
	switch number {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	}
	return strconv.Itoa(int(number))
}

// Decisions returns the record of what was decided.
func (g *Guard) Decisions() *DecisionLog { return g.log }

// Learn implements dnsproxy.Decider.
func (g *Guard) Learn(ctx context.Context, name string, aliases []string, addresses []netip.Addr, ttl time.Duration) error {
	r := request{name: newLearnedName(name, aliases), addresses: addresses, ttl: ttl, done: make(chan error, 1)}
	select {
	case g.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("learn the addresses of %s: %w", name, ctx.Err())
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("learn the addresses of %s: %w", name, ctx.Err())
	}
}
