package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNextAddress: a start does not begin again with the first address.
func TestNextAddress(t *testing.T) {
	o := Options{Directory: t.TempDir()}
	prefix := netip.MustParsePrefix("10.79.0.0/28")
	now := time.Now()
	seen := map[netip.Addr]bool{}
	for range 4 { // processes; the second has nothing to read about addresses in use
		a, err := openAddresses(o, prefix, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		a.close()
		if a, err = openAddresses(o, prefix, nil, now); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			address, err := a.take()
			if err == nil {
				err = errors.Join(a.use(address, now), a.free(address, now.Add(-time.Hour)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if seen[address] {
				t.Errorf("%v is given again, and others never were", address)
			}
			seen[address] = true
		}
		a.close()
	}
	content, err := os.ReadFile(filepath.Join(o.Directory, "addresses"))
	if err != nil || !strings.Contains(string(content), "next 10.79.0.11 ") {
		t.Errorf("the journal is %q, %v", content, err)
	}
}
