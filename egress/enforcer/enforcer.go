// Package enforcer holds the policy in force: it decides names and addresses for the DNS proxy,
// adds to the firewall the addresses that allowed names resolve to, changes the policy in one step,
// keeps it on disk, and records every decision.
package enforcer

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

	"sandbox.internal/egress/firewall"
	"sandbox.internal/egress/policy"
)

// ErrDenied says that an address must not be reached any more, although its name was allowed when
// it was asked for.
var ErrDenied = errors.New("denied by the policy that holds now")

// Firewall is the packet filter.
type Firewall interface {
	// Apply puts a policy into force, in one step. The learned addresses are these and no others
	// from then on; of those that open connections use, the ones stay for which keep returns true.
	Apply(compiled *policy.Compiled, keep func(netip.Addr) bool, learned []firewall.Address) error
	// Learn makes addresses reachable and returns when they are.
	Learn(addresses []firewall.Address) error
}

// Options configures a [Enforcer].
type Options struct {
	// Policy is in force already: the firewall was installed with it.
	Policy   *policy.Compiled
	Firewall Firewall
	// Store keeps the policy.
	Store *Store
	// Own returns a function that reports whether an address is one of the sandbox itself, for all
	// decisions of one moment.
	Own    func() func(netip.Addr) bool
	Logger zerolog.Logger
	Clock  func() time.Time
}

// Enforcer is safe for concurrent use.
type Enforcer struct {
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

// New returns an enforcer. Addresses are learned while [Enforcer.Run] runs.
func New(options Options) *Enforcer {
	return &Enforcer{
		options: options, log: newDecisionLog(options.Clock), requests: make(chan request, maxBatch), changed: make(chan struct{}, 1),
		compiled: options.Policy, now: options.Policy, known: newAddressTable(),
	}
}

// Policy returns the policy in force, in its normal form.
func (e *Enforcer) Policy() policy.Policy { return e.current().Policy() }

func (e *Enforcer) current() *policy.Compiled {
	e.view.RLock()
	defer e.view.RUnlock()
	return e.now
}

// Replace puts another policy into force and returns it in its normal form. It holds when Replace
// returns. An error that is [policy.ErrInvalid] is about the policy given; after any error the
// policy is the one before.
func (e *Enforcer) Replace(p policy.Policy) (policy.Policy, error) {
	return e.change(func(policy.Policy) (policy.Policy, error) { return p, nil })
}

// Merge adds rules, as [policy.Policy.Merge] does, in one step.
func (e *Enforcer) Merge(rules []policy.Rule) (policy.Policy, error) {
	return e.change(func(p policy.Policy) (policy.Policy, error) { return p.Merge(rules) })
}

// Remove takes the rules for the targets away, in one step.
func (e *Enforcer) Remove(targets []string) (policy.Policy, error) {
	return e.change(func(p policy.Policy) (policy.Policy, error) { return p.Without(targets) })
}

func (e *Enforcer) change(next func(policy.Policy) (policy.Policy, error)) (policy.Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}()
	before := e.compiled.Policy()
	wanted, err := next(before)
	if err != nil {
		return policy.Policy{}, err
	}
	compiled, err := policy.Compile(wanted)
	if err != nil {
		return policy.Policy{}, err
	}
	if err := e.options.Store.Save(compiled.Policy()); err != nil {
		return policy.Policy{}, err
	}
	now, own := e.options.Clock(), e.options.Own()
	allowed := func(addr netip.Addr, names []learnedName) bool {
		return compiled.Resolved(addr, own).Allowed() && anyAllowed(compiled, names)
	}
	keep := func(addr netip.Addr) bool { return allowed(addr, e.known.names(addr)) }
	valid := e.known.valid(now, allowed)
	if err := e.options.Firewall.Apply(compiled, keep, valid); err != nil {
		return policy.Policy{}, errors.Join(err, e.options.Store.Save(before))
	}
	e.known.setInFirewall(valid)
	e.compiled = compiled
	e.view.Lock()
	e.now = compiled
	e.view.Unlock()
	p := compiled.Policy()
	e.options.Logger.Info().Str("default_action", string(p.DefaultAction)).Int("rules", len(p.Egress)).Bool("dry_run", p.DryRun).
		Msg("the policy has changed")
	return p, nil
}

func anyAllowed(compiled *policy.Compiled, names []learnedName) bool {
	return slices.ContainsFunc(names, func(name learnedName) bool { return name.allowed(compiled) })
}

// Name implements dnsproxy.Decider.
func (e *Enforcer) Name(name string) (policy.Decision, bool) {
	compiled := e.current()
	return compiled.Name(name), compiled.DryRun()
}

// Resolved implements dnsproxy.Decider.
func (e *Enforcer) Resolved(addr netip.Addr) policy.Decision {
	return e.current().Resolved(addr, e.options.Own())
}

// Decided implements dnsproxy.Decider.
func (e *Enforcer) Decided(name string, d policy.Decision, dryRun, resolved bool) {
	e.log.Add(Decision{
		Subject: Subject{Kind: KindName, Target: name, Action: d.Action, DryRun: dryRun},
		Reason:  d.Reason, Rule: d.Rule, Resolved: resolved,
	})
}

// Packet records a packet that the firewall decided.
func (e *Enforcer) Packet(packet firewall.Packet) {
	compiled := e.current()
	d := compiled.Address(packet.Addr)
	e.mu.Lock()
	names := latest(e.known.names(packet.Addr))
	e.mu.Unlock()
	switch {
	case d.Reason == policy.ByRule:
	case packet.Action == policy.Allow && compiled.Default() == policy.Deny:
		d = policy.Decision{Reason: policy.ByName}
	}
	e.log.Add(Decision{
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
func (e *Enforcer) Decisions() *DecisionLog { return e.log }

// Learn implements dnsproxy.Decider.
func (e *Enforcer) Learn(ctx context.Context, name string, aliases []string, addresses []netip.Addr, ttl time.Duration) error {
	r := request{name: newLearnedName(name, aliases), addresses: addresses, ttl: ttl, done: make(chan error, 1)}
	select {
	case e.requests <- r:
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
