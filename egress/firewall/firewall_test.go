package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandbox.internal/egress/policy"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is an address behind the interface of the tests' namespace. No host has it: only the
// verdicts of the rules count.
var peer = netip.MustParseAddr("10.77.0.2")

// inNamespace runs f on a thread with a network namespace of its own, in which packets to the peer
// go out.
func inNamespace(t *testing.T, run func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			for _, line := range []string{
				"link add out type veth peer name far", "addr add 10.77.0.1/24 dev out",
				"link set far up", "link set out up",
				"neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev out",
			} {
				// A child of this thread is in its namespace.
				if out, err := exec.CommandContext(t.Context(), "ip",
					strings.Fields(line)...).CombinedOutput(); err != nil {
					return errors.Join(err, errors.New("ip "+line+": "+string(out)))
				}
			}
			return run()
		}()
	}()
	if err := wait.For(t, "the end of the function", done); err != nil {
		t.Fatal(err)
	}
}

func compiled(t *testing.T, text string) *policy.Compiled {
	t.Helper()
	parsed, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.Compile(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// holds reports whether an address is in a set.
func holds(conn *nftables.Conn, set *nftables.Set, addr netip.Addr) (bool, error) {
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return false, err
	}
	for _, element := range elements {
		if found, ok := netip.AddrFromSlice(element.Key); ok && found == addr {
			return true, nil
		}
	}
	return false, nil
}

func all(netip.Addr) bool  { return true }
func none(netip.Addr) bool { return false }

// TestOldRulesWriteToASetOfTheirOwn: what a packet on its way through the rules of the policy
// before notes after the change is nothing that the new rules look at.
func TestOldRulesWriteToASetOfTheirOwn(t *testing.T) {
	denyAll := compiled(t, `{"defaultAction": "deny"}`)
	inNamespace(t, func() error {
		f, err := Install(Options{DNSPort: 53, APIPort: 18080, LogGroup: 1}, denyAll)
		if err != nil {
			return err
		}
		defer f.Close()
		other, err := nftables.New()
		if err != nil {
			return err
		}
		note := func(set *nftables.Set) error {
			// what the rules do with the address of an open connection
			return errors.Join(other.SetAddElements(set,
				[]nftables.SetElement{{Key: peer.AsSlice(), Timeout: inUse}}), other.Flush())
		}
		before := f.inUse
		if err := note(before); err != nil {
			return err
		}
		// While the change is being prepared, the old rules note the address again.
		asked := 0
		refuse := func(addr netip.Addr) bool {
			asked++
			if err := note(before); err != nil {
				t.Errorf("a note under the old rules: %v", err)
			}
			return false
		}
		if err := f.Apply(denyAll, refuse, nil); err != nil {
			return err
		}
		if asked == 0 {
			t.Error("the address was not asked about")
		}
		if f.inUse.Name == before.Name {
			t.Errorf("both policies note addresses in %s", before.Name)
		}
		if found, err := holds(other, f.inUse, peer); err != nil || found {
			t.Errorf("the new rules have the address: %v, %v", found, err)
		}
		// And once more after it.
		if err := note(before); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("the old rules' set is still there: %v", err)
		}
		rules, err := other.GetRules(f.table, f.verdict)
		if err != nil {
			return err
		}
		if len(rules) == 0 {
			t.Error("there are no rules")
		}
		if found, err := holds(other, f.inUse, peer); err != nil || found {
			t.Errorf("the new rules have the address: %v, %v", found, err)
		}
		return nil
	})
}

// TestAChangeKeepsAddsAndTakesAway: after each change the set of learned addresses holds what was
// written and no more, for as long as it should.
func TestAChangeKeepsAddsAndTakesAway(t *testing.T) {
	allowing := compiled(t,
		`{"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.test"}]}`)
	address := func(last byte, holds time.Duration) Address {
		return Address{Addr: netip.AddrFrom4([4]byte{192, 0, 2, last}), For: holds}
	}
	inNamespace(t, func() error {
		f, err := Install(Options{DNSPort: 53, APIPort: 18080, LogGroup: 1}, allowing)
		if err != nil {
			return err
		}
		defer f.Close()
		one, two, three := address(1, time.Hour), address(2, time.Hour), address(3, time.Hour)
		if err := f.Learn([]Address{one, two, three}); err != nil {
			return err
		}
		for _, step := range []struct {
			name    string
			learned []Address
			want    map[byte]time.Duration // about how long each address is reachable
		}{
			{"what is there", []Address{one, two, three},
				map[byte]time.Duration{1: time.Hour, 2: time.Hour, 3: time.Hour}},
			{"one more", []Address{one, two, three, address(4, time.Hour)},
				map[byte]time.Duration{1: time.Hour, 2: time.Hour, 3: time.Hour, 4: time.Hour}},
			{"one for longer", []Address{address(1, 3*time.Hour), two, three},
				map[byte]time.Duration{1: 3 * time.Hour, 2: time.Hour, 3: time.Hour}},
			{"one twice", []Address{one, address(1, 2*time.Hour), two, three},
				map[byte]time.Duration{1: 2 * time.Hour, 2: time.Hour, 3: time.Hour}},
			{"two less", []Address{one, address(5, time.Hour)},
				map[byte]time.Duration{1: time.Hour, 5: time.Hour}},
			{"none", nil, map[byte]time.Duration{}},
		} {
			// The learned addresses are not read: all of them are passed in.
			if err := f.Apply(allowing, all, step.learned); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			elements, err := f.conn.GetSetElements(f.learned)
			if err != nil {
				return err
			}
			if len(elements) != len(step.want) {
				t.Errorf("%s: there are %d addresses, want %d", step.name, len(elements),
					len(step.want))
			}
			for _, element := range elements {
				want, ok := step.want[element.Key[3]]
				if off := want - element.Expires; !ok || off < -time.Minute || off > time.Minute {
					t.Errorf("%s: %v stays for %v, want %v (%t)", step.name, element.Key,
						element.Expires, want, ok)
				}
			}
		}
		return nil
	})
}

// TestAChangeUnderFlood takes an address away while packets to it never cease, many times: none of
// them brings it back.
func TestAChangeUnderFlood(t *testing.T) {
	const changes, senders = 30, 2
	denyAll := compiled(t, `{"defaultAction": "deny"}`)
	inNamespace(t, func() error {
		f, err := Install(Options{DNSPort: 53, APIPort: 18080, LogGroup: 1}, denyAll)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Open(); err != nil {
			return err
		}
		other, err := nftables.New()
		if err != nil {
			return err
		}
		var flood sync.WaitGroup
		stop := make(chan struct{})
		defer flood.Wait()
		defer close(stop)
		for range senders {
			// The socket belongs to the namespace of the thread that makes it.
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			flood.Go(func() {
				defer unix.Close(fd)
				to := &unix.SockaddrInet4{Addr: peer.As4(), Port: 9}
				for {
					select {
					case <-stop:
						return
					default:
						_ = unix.Sendto(fd, []byte("x"), 0, to) // refused, most of the time
					}
				}
			})
		}
		for n := range changes {
			if err := f.Learn([]Address{{Addr: peer, For: time.Hour}}); err != nil {
				return err
			}
			for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
				found, err := holds(other, f.inUse, peer)
				if err != nil {
					return err
				}
				if found {
					break
				}
				if time.Now().After(deadline) {
					return errors.New("no packet used the address")
				}
			}
			if err := f.Apply(denyAll, none, nil); err != nil {
				return err
			}
			for range 3 {
				if found, err := holds(other, f.inUse, peer); err != nil {
					return err
				} else if found {
					return fmt.Errorf("change %d: the address came back", n)
				}
			}
		}
		return nil
	})
}
