package firewall

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAFullSetOfAddressesInUseDeniesNothing: a sandbox that uses more addresses than the set holds
// still reaches the others, and a change of the policy reads no more than the set holds.
func TestAFullSetOfAddressesInUseDeniesNothing(t *testing.T) {
	inNamespace(t, func() error {
		if out, err := exec.CommandContext(t.Context(), "ip", "route", "add", "10.78.0.0/16", "via",
			peer.String()).CombinedOutput(); err != nil {
			return fmt.Errorf("ip route: %w: %s", err, out)
		}
		f, err := Install(Options{DNSPort: 1, APIPort: 2, LogGroup: 1},
			compiled(t, `{"defaultAction":"deny"}`))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Open(); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const portion = 1024
		for i := 0; i < maxInUse+portion; i += portion {
			learned := make([]Address, portion)
			for j := range learned {
				learned[j] = Address{Addr: netip.AddrFrom4([4]byte{10, 78, byte((i + j) >> 8),
					byte(i + j)}), For: time.Hour}
			}
			if err := f.Learn(learned); err != nil {
				return err
			}
			for _, address := range learned {
				if err := unix.Sendto(fd, []byte("x"), 0,
					&unix.SockaddrInet4{Port: 9, Addr: address.Addr.As4()}); err != nil {
					return fmt.Errorf("to address %d: %w", i, err)
				}
			}
		}
		used, err := f.conn.GetSetElements(f.inUse)
		if err != nil || len(used) != maxInUse {
			t.Errorf("%d addresses are in use (%v), want %d", len(used), err, maxInUse)
		}
		return f.Apply(compiled(t, `{"defaultAction":"deny"}`), all, nil)
	})
}
