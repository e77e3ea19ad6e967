package policy

import (
	"fmt"
	"net/netip"
	"strings"
)

// maxName is the longest domain name in its textual form (RFC 1035, without the final dot).
const maxName = 253

// target is a parsed target: either a domain (wildcard or not) or a range of addresses.
type target struct {
	domain   string // lower case, without the final dot and the "*."
	wildcard bool
	prefix   netip.Prefix
}

func (t target) isAddress() bool { return t.prefix.IsValid() }

// String returns the normal form.
func (t target) String() string {
	switch {
	case t.isAddress() && t.prefix.IsSingleIP():
		return t.prefix.Addr().String()
	case t.isAddress():
		return t.prefix.String()
	case t.wildcard:
		return "*." + t.domain
	}
	return t.domain
}

func parseTarget(text string) (target, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		if !addr.Is4() {
			return target{}, fmt.Errorf("%q is an IPv6 address; a sandbox with an egress policy has no IPv6", text)
		}
		return target{prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return target{}, notATarget(text)
		case !prefix.Addr().Is4():
			return target{}, fmt.Errorf("%q is an IPv6 range; a sandbox with an egress policy has no IPv6", text)
		}
		return target{prefix: prefix.Masked()}, nil
	}
	domain, wildcard := strings.CutPrefix(text, "*.")
	domain, ok := NormalName(domain)
	if !ok || allDigits(domain[strings.LastIndexByte(domain, '.')+1:]) {
		return target{}, notATarget(text) // a last label of digits is a mistyped address (RFC 1123, 2.1)
	}
	return target{domain: domain, wildcard: wildcard}, nil
}

func notATarget(text string) error {
	return fmt.Errorf("%q is no domain, wildcard domain, IPv4 address or CIDR range", text)
}

func allDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// NormalName returns a domain name in lower case without its final dot, and whether it is one that
// can be allowed: labels of letters, digits, hyphens and underscores. Names with anything else,
// such as a dot inside a label, are not.
func NormalName(name string) (string, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > maxName {
		return "", false
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) == 0 || len(label) > 63 {
			return "", false
		}
		for _, char := range []byte(label) {
			if (char < 'a' || char > 'z') && (char < '0' || char > '9') && char != '-' && char != '_' {
				return "", false
			}
		}
	}
	return name, true
}
