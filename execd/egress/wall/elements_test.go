package wall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// described is what the kernel says of a set with these addresses.
func described(t *testing.T, addresses ...Address) []byte {
	t.Helper()
	marshal := func(attributes ...netlink.Attribute) []byte {
		data, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var elements []netlink.Attribute
	for _, a := range addresses {
		key := marshal(netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: a.Addr.AsSlice()})
		left := binary.BigEndian.AppendUint64(nil, uint64(a.For.Milliseconds()))
		elements = append(elements, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: marshal(
			netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_KEY, Data: key},
			netlink.Attribute{Type: unix.NFTA_SET_ELEM_TIMEOUT, Data: left},
			netlink.Attribute{Type: unix.NFTA_SET_ELEM_EXPIRATION, Data: left},
		)})
	}
	return append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, marshal(
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: text("odd")}, // ends between two borders of attributes
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_LIST_ELEMENTS, Data: marshal(elements...)},
	)...)
}

func TestElementsAreRead(t *testing.T) {
	want := []Address{{Addr: netip.MustParseAddr("192.0.2.1"), For: time.Minute}, {Addr: netip.MustParseAddr("192.0.2.2"), For: 24 * time.Hour}}
	message := described(t, want...)
	if got, err := appendElements(nil, message); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := appendElements(nil, described(t)); err != nil || len(got) != 0 {
		t.Errorf("of an empty set: %+v, %v", got, err)
	}
	// What is cut short anywhere is an error, or has lost the whole list: never some of the elements.
	for length := range message {
		if got, err := appendElements(nil, message[:length]); !errors.Is(err, errMalformed) && len(got) > 0 {
			t.Errorf("of %d bytes: %+v, %v", length, got, err)
		}
	}
}

// TestThousandsOfElementsAreRead, in the many parts of the kernel's answer, and again after a question that has no answer.
func TestThousandsOfElementsAreRead(t *testing.T) {
	const count = 8192
	allowing := compiled(t, `{"defaultAction": "allow"}`)
	inNamespace(t, func() error {
		w, err := Build(Options{DNSPort: 53, APIPort: 18080, LogGroup: 1}, allowing)
		if err != nil {
			return err
		}
		defer w.Close()
		var learned []Address
		for n := range count {
			learned = append(learned, Address{Addr: netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), For: time.Hour})
		}
		if err := w.Learn(learned); err != nil {
			return err
		}
		if _, err := w.elements(&nftables.Set{Table: w.table, Name: "nowhere"}); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("a set that is not there: %v", err)
		}
		// While the kernel makes room for that many it may tell of some twice or not at all.
		for deadline := time.Now().Add(30 * time.Second); ; {
			elements, err := w.elements(w.learned)
			if err != nil {
				return err
			}
			there := make(map[netip.Addr]bool, count)
			for _, e := range elements {
				there[e.Addr] = true
				if e.For <= 0 || e.For > time.Hour {
					t.Errorf("%+v was not learned", e)
				}
			}
			if !slices.ContainsFunc(learned, func(a Address) bool { return !there[a.Addr] }) && len(there) == count {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d of %d addresses are there", len(there), count)
			}
		}
	})
}

func FuzzElements(f *testing.F) {
	f.Add([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0, 8, 0, 3, 0, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		all, err := appendElements(nil, message)
		for _, address := range all {
			if err == nil && !address.Addr.IsValid() {
				t.Errorf("%+v", all)
			}
		}
	})
}
