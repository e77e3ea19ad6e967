package enforcer_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/egress/enforcer"
)

// TestNameServersAreFoundOnce: a later change of what they are found in has no effect.
func TestNameServersAreFoundOnce(t *testing.T) {
	directory := t.TempDir()
	first, later := netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.66:53")
	ask := func(answer []netip.AddrPort, failure error) ([]netip.AddrPort, error) {
		t.Helper()
		store, err := enforcer.NewStore(directory)
		if err != nil {
			t.Fatal(err)
		}
		return store.NameServers(func() ([]netip.AddrPort, error) { return answer, failure })
	}
	missing := errors.New("there are none yet")
	if _, err := ask(nil, missing); !errors.Is(err, missing) {
		t.Errorf("without name servers: %v", err)
	}
	for _, answer := range []netip.AddrPort{first, later} {
		if got, err := ask([]netip.AddrPort{answer}, nil); err != nil || !slices.Equal(got, []netip.AddrPort{first}) {
			t.Errorf("when %s is found: %v, %v, want %s", answer, got, err, first)
		}
	}
	if err := os.WriteFile(filepath.Join(directory, "name-servers.json"), []byte(`["192.0.2`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ask([]netip.AddrPort{later}, nil); !errors.Is(err, enforcer.ErrDamaged) || len(got) > 0 {
		t.Errorf("a damaged file: %v, %v", got, err)
	}
}
