package enforcer

import (
	"context"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"sandbox.internal/egress/firewall"
	"sandbox.internal/egress/policy"
)

const (
	// minHold and maxHold bound the time to live for which an answer is taken to hold: programs
	// keep addresses for longer than that.
	minHold = 30 * time.Second
	maxHold = 24 * time.Hour
	// reachableAfterHold is how much longer than the answer holds an address stays reachable
	// without being asked for again.
	reachableAfterHold = 30 * time.Second

	// clockSkew is how much later than here an address may time out in the kernel.
	clockSkew = 5 * time.Second

	// freeMemoryAfter is how long no answer was learned and no policy changed before memory is
	// given back.
	freeMemoryAfter = 2 * time.Second

	// maxBatch is how many answers are learned in one step at most, and maxBatchAddresses at how
	// many addresses a step takes no more answers.
	maxBatch          = 256
	maxBatchAddresses = 1024
	// maxKnown is how many addresses are remembered; those that hold for the shortest time make
	// room.
	maxKnown = 8192
	// maxNames is how many names are remembered of an address, the latest last, and maxNameBytes
	// how long those of all addresses are together, with their aliases.
	maxNames     = 16
	maxNameBytes = 4 << 20
	// shownNames is how many of them a decision shows.
	shownNames = 4
)

// request asks for the addresses of one answer to be learned.
type request struct {
	name      learnedName
	addresses []netip.Addr
	ttl       time.Duration
	done      chan error
}

// Run learns addresses until ctx ends. Answers that come while the kernel is busy with others are
// learned together.
func (e *Enforcer) Run(ctx context.Context) {
	quiet := time.NewTimer(freeMemoryAfter)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-quiet.C:
			// Once after each time of activity: what a burst of queries or a change took is given
			// back.
			debug.FreeOSMemory()
		case <-e.changed:
			quiet.Reset(freeMemoryAfter)
		case first := <-e.requests:
			batch, addresses := []request{first}, len(first.addresses)
			for more := true; more && len(batch) < maxBatch && addresses < maxBatchAddresses; {
				select {
				case r := <-e.requests:
					batch, addresses = append(batch, r), addresses+len(r.addresses)
				default:
					more = false
				}
			}
			e.learn(batch)
			quiet.Reset(freeMemoryAfter)
		}
	}
}

// learn decides once more, because the policy may have changed since the question.
func (e *Enforcer) learn(batch []request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, own := e.options.Clock(), e.options.Own()
	e.known.prune(now)
	results := make([]error, len(batch))
	var fresh []firewall.Address
	for i, r := range batch {
		holds := min(max(r.ttl, minHold), maxHold)
		nameAllowed := r.name.allowed(e.compiled)
		if !nameAllowed && !e.compiled.DryRun() {
			results[i] = ErrDenied
			continue
		}
		for _, addr := range r.addresses {
			until, inFirewall := e.known.add(addr, r.name)
			allowed := nameAllowed && e.compiled.Resolved(addr, own).Allowed()
			if !allowed && !e.compiled.DryRun() {
				results[i] = ErrDenied
				break
			}
			if !allowed || inFirewall && until.Sub(now) >= holds {
				continue
			}
			// Under a policy that allows by default the firewall has no learned addresses; these
			// are added when that changes.
			e.known.extend(addr, now.Add(holds+reachableAfterHold), e.compiled.Default() == policy.Deny)
			if e.compiled.Default() == policy.Deny {
				// The kernel's clock began a little later.
				known := inFirewall && until.Add(clockSkew).After(now) || e.known.leftInFirewall(addr, now)
				fresh = append(fresh, firewall.Address{Addr: addr, For: holds + reachableAfterHold, Known: known})
			}
		}
	}
	if len(fresh) > 0 {
		if err := e.options.Firewall.Learn(fresh); err != nil {
			for _, address := range fresh {
				if address.Known {
					e.known.leave(address.Addr, now.Add(address.For))
				}
				e.known.forget(address.Addr)
			}
			for i := range results {
				if results[i] == nil {
					results[i] = err
				}
			}
		}
	}
	for i, r := range batch {
		r.done <- results[i]
	}
}

// learnedName is a name that resolved to an address, and how.
type learnedName struct {
	name string
	// aliases led from the name to the address. They are in one string, each with aliasEnd, so that
	// many short ones take little more memory than their bytes.
	aliases string
}

// aliasEnd is in no name: the DNS proxy has its text form, where such a character is escaped.
const aliasEnd = "\n"

func newLearnedName(name string, aliases []string) learnedName {
	var all strings.Builder
	for _, alias := range aliases {
		all.WriteString(alias + aliasEnd)
	}
	return learnedName{name: name, aliases: all.String()}
}

// size is the length of the names, in bytes.
func (n learnedName) size() int { return len(n.name) + len(n.aliases) }

// allowed decides as the DNS proxy does: by the name, and by what rules say about its aliases.
func (n learnedName) allowed(compiled *policy.Compiled) bool {
	if !compiled.Name(n.name).Allowed() {
		return false
	}
	for rest := n.aliases; rest != ""; {
		alias, after, _ := strings.Cut(rest, aliasEnd)
		if d := compiled.Name(alias); !d.Allowed() && d.Reason == policy.ByRule {
			return false
		}
		rest = after
	}
	return true
}

// addressTable records which names resolved to an address, and until when the address may be
// reached.
type addressTable struct {
	entries map[netip.Addr]*entry
	bytes   int // of the names
	// left is until when the firewall may have each address that made room here, or that it did not
	// learn again; of more than maxLeft, until when it may have any.
	left    map[netip.Addr]time.Time
	leftAny time.Time
}

// maxLeft bounds the addresses of left that are remembered one by one: 3 MiB.
const maxLeft = 1 << 15

// leave notes that the firewall has the address until then, although the table has not.
func (t *addressTable) leave(addr netip.Addr, until time.Time) {
	if t.left == nil {
		t.left = map[netip.Addr]time.Time{}
	}
	if until.Before(t.left[addr]) {
		return
	}
	if len(t.left) < maxLeft {
		t.left[addr] = until
	} else if until.After(t.leftAny) {
		t.leftAny = until
	}
}

// prune forgets those of them that the firewall has no more, once there are many.
func (t *addressTable) prune(now time.Time) {
	if len(t.left) >= maxLeft {
		maps.DeleteFunc(t.left, func(_ netip.Addr, until time.Time) bool { return !until.Add(clockSkew).After(now) })
	}
}

// leftInFirewall reports whether the firewall may have an address that made room here.
func (t *addressTable) leftInFirewall(addr netip.Addr, now time.Time) bool {
	return t.left[addr].Add(clockSkew).After(now) || t.leftAny.Add(clockSkew).After(now)
}

type entry struct {
	names      []learnedName
	until      time.Time
	inFirewall bool // the firewall has the address
}

func newAddressTable() *addressTable { return &addressTable{entries: make(map[netip.Addr]*entry)} }

// add notes a name of an address. It returns until when the address may be reached, and whether the
// firewall has it.
func (t *addressTable) add(addr netip.Addr, name learnedName) (time.Time, bool) {
	t.makeRoom(addr)
	e, ok := t.entries[addr]
	if !ok {
		e = &entry{}
		t.entries[addr] = e
	}
	at := slices.IndexFunc(e.names, func(other learnedName) bool { return other.name == name.name })
	if at < 0 && len(e.names) >= maxNames {
		at = 0
	}
	if at >= 0 {
		t.bytes -= e.names[at].size()
		e.names = slices.Delete(e.names, at, at+1)
	}
	e.names = append(e.names, name)
	t.bytes += name.size()
	return e.until, e.inFirewall
}

func (t *addressTable) extend(addr netip.Addr, until time.Time, inFirewall bool) {
	if e := t.entries[addr]; e != nil {
		e.until, e.inFirewall = until, inFirewall
	}
}

func (t *addressTable) forget(addr netip.Addr) {
	if e := t.entries[addr]; e != nil {
		for _, name := range e.names {
			t.bytes -= name.size()
		}
		delete(t.entries, addr)
	}
}

func (t *addressTable) names(addr netip.Addr) []learnedName {
	if e := t.entries[addr]; e != nil {
		return e.names
	}
	return nil
}

// valid returns the addresses that have not expired and are allowed.
func (t *addressTable) valid(now time.Time, allowed func(netip.Addr, []learnedName) bool) []firewall.Address {
	all := make([]firewall.Address, 0, len(t.entries))
	for addr, e := range t.entries {
		if e.until.After(now) && allowed(addr, e.names) {
			all = append(all, firewall.Address{Addr: addr, For: e.until.Sub(now)})
		}
	}
	return all
}

// setInFirewall records that the firewall has these addresses and no others.
func (t *addressTable) setInFirewall(addresses []firewall.Address) {
	t.left, t.leftAny = nil, time.Time{}
	for _, e := range t.entries {
		e.inFirewall = false
	}
	for _, address := range addresses {
		t.entries[address.Addr].inFirewall = true
	}
}

// makeRoom removes a tenth of what is remembered, other than of the address, once it is too much.
// What is forgotten stays reachable until it times out, or until the policy changes.
func (t *addressTable) makeRoom(keep netip.Addr) {
	_, known := t.entries[keep]
	if (known || len(t.entries) < maxKnown) && t.bytes < maxNameBytes {
		return
	}
	var ends []time.Time
	for _, e := range t.entries {
		ends = append(ends, e.until)
	}
	slices.SortFunc(ends, time.Time.Compare)
	limit := ends[len(ends)/10]
	for addr, e := range t.entries {
		if !e.until.After(limit) && addr != keep {
			if e.inFirewall {
				t.leave(addr, e.until)
			}
			t.forget(addr)
		}
	}
}

// latest returns the names that a decision shows, the latest first.
func latest(names []learnedName) []string {
	shown := make([]string, 0, shownNames)
	for _, name := range slices.Backward(names) {
		if len(shown) < shownNames {
			shown = append(shown, name.name)
		}
	}
	return shown
}
