package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/egress/enforcer"
	"sandbox.internal/egress/firewall"
	"sandbox.internal/egress/policy"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel stands for the firewall: it holds the addresses that were learned.
type kernel struct {
	mu      sync.Mutex
	held    map[netip.Addr]bool
	vain    int          // learned as if held, which takes a firewall several times as long
	stale   []netip.Addr // held, and learned again as if they were not: their time stays as it is
	learned int
	kept    []netip.Addr // of those that it held before the policy changed, what open connections keep
	failure error
	asked   atomic.Int32 // how often the interfaces were looked at
}

// own says that no address is the sandbox's own.
func (k *kernel) own() func(netip.Addr) bool {
	k.asked.Add(1)
	return func(netip.Addr) bool { return false }
}

func (k *kernel) Learn(addresses []firewall.Address) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		return k.failure
	}
	for _, address := range addresses {
		if k.held[address.Addr] && !address.Known {
			k.stale = append(k.stale, address.Addr)
		}
		if address.Known && !k.held[address.Addr] {
			k.vain++
		}
		k.held[address.Addr] = true
		k.learned++
	}
	return nil
}

func (k *kernel) Apply(_ *policy.Compiled, keep func(netip.Addr) bool, learned []firewall.Address) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		return k.failure
	}
	k.kept = nil
	for addr := range k.held {
		if keep(addr) {
			k.kept = append(k.kept, addr)
		}
	}
	clear(k.held)
	for _, address := range learned {
		k.held[address.Addr] = true
	}
	return nil
}

func (k *kernel) holds() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for addr := range k.held {
		all = append(all, addr.String())
	}
	slices.Sort(all)
	return all
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) advance(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

func parse(t *testing.T, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func start(t *testing.T, text string) (*enforcer.Enforcer, *kernel, *clock, string) {
	t.Helper()
	compiled, err := policy.Compile(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	store, err := enforcer.NewStore(directory)
	if err != nil {
		t.Fatal(err)
	}
	k, c := &kernel{held: make(map[netip.Addr]bool)}, &clock{now: time.Unix(1_000_000, 0)}
	e := enforcer.New(enforcer.Options{
		Policy: compiled, Firewall: k, Store: store, Own: k.own,
		Logger: zerolog.Nop(), Clock: c.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	t.Cleanup(func() { cancel(); wait.For(t, "the end of the enforcer", done) })
	return e, k, c, directory
}

func learn(t *testing.T, e *enforcer.Enforcer, name, addr string, ttl time.Duration) error {
	t.Helper()
	return e.Learn(t.Context(), name, nil, []netip.Addr{netip.MustParseAddr(addr)}, ttl)
}

// TestARuleAboutAnAliasHoldsForWhatWasLearned: what a name resolved to through an alias that is
// denied now is not reachable any more, unless a name resolves to it in another way.
func TestARuleAboutAnAliasHoldsForWhatWasLearned(t *testing.T) {
	const first, second = "198.51.100.1", "198.51.100.2"
	e, k, _, _ := start(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"*.ok.test"}]}`)
	along := func(name, addr string, aliases ...string) error {
		return e.Learn(t.Context(), name, aliases, []netip.Addr{netip.MustParseAddr(addr)}, 24*time.Hour)
	}
	for _, err := range []error{
		along("a.ok.test", first, "edge.cdn.test", "x.evil.test"),
		along("a.ok.test", second, "edge.cdn.test", "x.evil.test"), along("b.ok.test", second, "edge.cdn.test"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Merge([]policy.Rule{{Action: policy.Deny, Target: "*.evil.test"}}); err != nil {
		t.Fatal(err)
	}
	if got := k.holds(); !slices.Equal(got, []string{second}) || !slices.Equal(k.kept, []netip.Addr{netip.MustParseAddr(second)}) {
		t.Errorf("the firewall holds %v and keeps %v", got, k.kept)
	}
	// An answer that was on its way while the policy changed.
	if err := along("a.ok.test", first, "edge.cdn.test", "x.evil.test"); !errors.Is(err, enforcer.ErrDenied) {
		t.Errorf("learned along a denied alias: %v", err)
	}
	if err := along("a.ok.test", first, "edge.cdn.test"); err != nil {
		t.Error(err)
	}
}

func TestAddressesAreLearnedOnceAndRenewedInTime(t *testing.T) {
	e, k, c, _ := start(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]}`)
	for _, step := range []struct {
		after   time.Duration
		ttl     time.Duration
		learned int
	}{
		{0, time.Second, 1},                // for minHold and reachableAfterHold: 60 s
		{10 * time.Second, time.Second, 1}, // holds for 50 s more
		{25 * time.Second, time.Second, 2}, // would only hold for 25 s
		{0, time.Hour, 3},
		{50 * time.Minute, time.Minute, 3},
	} {
		c.advance(step.after)
		if err := learn(t, e, "a.test", "192.0.2.1", step.ttl); err != nil {
			t.Fatal(err)
		}
		if k.learned != step.learned {
			t.Fatalf("%+v: learned %d times", step, k.learned)
		}
	}
	if err := learn(t, e, "b.test", "192.0.2.2", time.Second); !errors.Is(err, enforcer.ErrDenied) {
		t.Errorf("a denied name gave %v", err)
	}
	if got := k.holds(); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("the firewall holds %v", got)
	}
}

// TestWhatMadeRoomIsLearnedAgain: an address that the enforcer has forgotten is still in the
// firewall, where adding it would leave its time as it is.
func TestWhatMadeRoomIsLearnedAgain(t *testing.T) {
	e, k, _, _ := start(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]}`)
	const first = "10.1.0.0"
	if err := learn(t, e, "a.test", first, time.Minute); err != nil {
		t.Fatal(err)
	}
	for i := range enforcer.MaxKnown {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		if err := learn(t, e, "a.test", addr.String(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for _, addr := range []string{first, "10.2.0.0"} {
		if err := learn(t, e, "a.test", addr, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.stale) > 0 || k.vain > 0 {
		t.Errorf("%v will be refused before its time; %d new addresses are taken for old ones", k.stale, k.vain)
	}
}

func TestAFailedLessonIsLearnedAgain(t *testing.T) {
	e, k, c, _ := start(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]}`)
	k.failure = errors.New("the kernel says no")
	if err := learn(t, e, "a.test", "192.0.2.1", time.Hour); !errors.Is(err, k.failure) {
		t.Errorf("got %v", err)
	}
	k.failure = nil
	if err := learn(t, e, "a.test", "192.0.2.1", time.Hour); err != nil || k.learned != 1 {
		t.Errorf("got %v, learned %d times", err, k.learned)
	}
	c.advance(time.Hour) // the firewall has it for the grace yet
	k.failure = errors.New("the kernel says no")
	for range 2 {
		if err := learn(t, e, "a.test", "192.0.2.1", time.Minute); !errors.Is(err, k.failure) {
			t.Errorf("got %v", err)
		}
	}
	k.failure = nil
	if err := learn(t, e, "a.test", "192.0.2.1", time.Hour); err != nil || k.learned != 2 || len(k.stale) > 0 || k.vain > 0 {
		t.Errorf("got %v, learned %d times; %v will be refused before its time, %d taken for known", err, k.learned, k.stale, k.vain)
	}
}

func TestAChangeKeepsTheAddressesOfAllowedNames(t *testing.T) {
	e, k, c, _ := start(t, `{}`)
	for name, addr := range map[string]string{"a.test": "192.0.2.1", "b.test": "192.0.2.2", "c.test": "10.0.0.1"} {
		if err := learn(t, e, name, addr, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := learn(t, e, "old.test", "192.0.2.3", time.Second); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Minute)
	if _, err := e.Replace(parse(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"*.test"},{"action":"deny","target":"10.0.0.0/8"}]}`)); err != nil {
		t.Fatal(err)
	}
	if got := k.holds(); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2"}) {
		t.Errorf("the firewall holds %v", got)
	}
	if _, err := e.Merge([]policy.Rule{{Action: policy.Deny, Target: "b.test"}}); err != nil {
		t.Fatal(err)
	}
	if got := k.holds(); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("the firewall holds %v", got)
	}
	if p, err := e.Remove([]string{"B.test"}); err != nil || len(p.Egress) != 2 {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestAChangeLooksAtTheInterfacesOnce, however many addresses are known: to look takes as long as
// hundreds of decisions.
func TestAChangeLooksAtTheInterfacesOnce(t *testing.T) {
	e, k, _, _ := start(t, `{}`)
	for i := range 100 {
		if err := learn(t, e, "a.test", fmt.Sprintf("192.0.2.%d", i), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	before := k.asked.Load()
	if _, err := e.Replace(parse(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"*.test"}]}`)); err != nil {
		t.Fatal(err)
	}
	if got := k.asked.Load() - before; got != 1 || len(k.holds()) != 100 {
		t.Errorf("the interfaces were looked at %d times for %d addresses, want once for 100", got, len(k.holds()))
	}
}

func TestThePolicySurvives(t *testing.T) {
	e, k, _, directory := start(t, `{}`)
	closed := parse(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]}`)
	if _, err := e.Replace(closed); err != nil {
		t.Fatal(err)
	}
	store, err := enforcer.NewStore(directory)
	if err != nil {
		t.Fatal(err)
	}
	held := func() policy.Policy {
		t.Helper()
		p, err := store.Load(policy.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := held(); p.DefaultAction != policy.Deny || !slices.Equal(p.Egress, closed.Egress) {
		t.Errorf("held %+v", p)
	}
	// What the firewall refuses is not kept either.
	k.failure = errors.New("the kernel says no")
	if _, err := e.Replace(policy.Policy{}); !errors.Is(err, k.failure) {
		t.Errorf("got %v", err)
	}
	if p := held(); p.DefaultAction != policy.Deny || e.Policy().DefaultAction != policy.Deny {
		t.Errorf("held %+v, in force %+v", p, e.Policy())
	}
	// What cannot be read denies everything.
	if err := os.WriteFile(filepath.Join(directory, "policy.json"), []byte(`{"defaultAction":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := store.Load(policy.Policy{}); err == nil || p.DefaultAction != policy.Deny || len(p.Egress) != 0 {
		t.Errorf("a damaged file gave %+v, %v", p, err)
	}
}
