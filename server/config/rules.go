package config

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Seconds is a duration as the file writes it: a whole number of seconds.
type Seconds int64

// maxSeconds is ten years: more is a slip, and far more would overflow a
// time.Duration.
const maxSeconds Seconds = 10 * 365 * 24 * 3600

// Duration converts to the standard type.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

func (s Seconds) check(p *problems, key string, lowest Seconds) {
	if s < lowest || s > maxSeconds {
		p.add(key, "must be between %d and %d seconds (got %d)", int64(lowest), int64(maxSeconds),
			int64(s))
	}
}

// maxLimit is far above what one service can do: more is a slip.
const maxLimit = 1_000_000

func checkLimit(p *problems, key string, got int) {
	if got < 0 || got > maxLimit {
		p.add(key, "must be between 0 (no limit) and %d (got %d)", maxLimit, got)
	}
}

// checkOneOf reports a value that is not one of the allowed ones.
func checkOneOf[T ~string](p *problems, key string, got T, allowed ...T) {
	if slices.Contains(allowed, got) {
		return
	}
	var list strings.Builder
	for i, a := range allowed {
		switch {
		case i == 0:
		case i == len(allowed)-1:
			list.WriteString(" or ")
		default:
			list.WriteString(", ")
		}
		list.WriteString(string(a))
	}
	p.add(key, "must be %s (got %q)", list.String(), string(got))
}

// hostName is a DNS name (RFC 1123), also with underscores, which the service
// names of container networks may have.
var hostName = regexp.MustCompile(
	`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*$`)

// digitsAndDots is what a mistyped IPv4 address looks like; no host name does.
var digitsAndDots = regexp.MustCompile(`^[0-9.]+$`)

// isHost reports whether s is an IP address or a host name, without a port.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= 253 && hostName.MatchString(s) && !digitsAndDots.MatchString(s)
}

// isHostPort reports whether s is an IP address or a host name, with or without a port. Brackets
// around an IPv6 address without a port are optional.
func isHostPort(s string) bool {
	name, port, err := net.SplitHostPort(s)
	if err != nil {
		if inside, ok := strings.CutPrefix(s, "["); ok {
			ip, err := netip.ParseAddr(strings.TrimSuffix(inside, "]"))
			return err == nil && ip.Is6() && s == "["+ip.String()+"]"
		}
		return isHost(s)
	}
	n, err := strconv.Atoi(port)
	return err == nil && n >= 1 && n <= 65535 && isHost(name)
}

// isLoopbackAddress reports whether s is "ADDRESS:PORT" or "localhost:PORT", with an
// address that only this machine reaches.
func isLoopbackAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil ||
		strconv.FormatUint(n, 10) != port {
		return false
	}
	return isLoopback(host)
}

// isLoopback reports whether a host is an address that only this machine reaches.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func hasSpace(s string) bool { return strings.ContainsFunc(s, unicode.IsSpace) }
