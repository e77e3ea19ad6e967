package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// rangesOf works out what the first rule that matches says for every address. CIDR ranges are
// nested or apart, so between two neighbouring borders nothing changes.
func rangesOf(rules []addressRule) []Range {
	// Borders are 64 bits wide, because the one behind the last address has no room in 32.
	var borders []uint64
	for _, rule := range rules {
		first, size := extent(rule.prefix)
		borders = append(borders, first, first+size)
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	var ranges []Range
	for i := 0; i+1 < len(borders); i++ {
		first := addrOf(borders[i])
		at := slices.IndexFunc(rules, func(r addressRule) bool { return r.prefix.Contains(first) })
		if at < 0 {
			continue
		}
		last := addrOf(borders[i+1] - 1)
		if n := len(ranges) - 1; n >= 0 && ranges[n].Action == rules[at].action && ranges[n].Last.Next() == first {
			ranges[n].Last = last
			continue
		}
		ranges = append(ranges, Range{First: first, Last: last, Action: rules[at].action})
	}
	return ranges
}

func extent(prefix netip.Prefix) (first, size uint64) {
	bytes := prefix.Masked().Addr().As4()
	return uint64(binary.BigEndian.Uint32(bytes[:])), 1 << (32 - prefix.Bits())
}

func addrOf(n uint64) netip.Addr {
	var bytes [4]byte
	binary.BigEndian.PutUint32(bytes[:], uint32(n))
	return netip.AddrFrom4(bytes)
}
