package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// LogLevels is the meaning of a log level: a syslog severity. Messages of this severity and worse
// are written.
const LogLevels = "0 Emergency, 1 Alert, 2 Critical, 3 Error, 4 Warning, 5 Notice, 6 Info, 7 Debug"

// Port reads a TCP port; with 0 the kernel chooses a free one.
func Port(value string) (int, error) { return whole(value, 65535) }

// LogLevel reads a syslog severity, 0 (Emergency) to 7 (Debug).
func LogLevel(value string) (int, error) { return whole(value, 7) }

func whole(value string, maximum int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maximum {
		return 0, fmt.Errorf("must be a whole number from 0 to %d, got %q", maximum, value)
	}
	return n, nil
}

// Host reads an IP address to listen on; empty means every interface.
func Host(value string) (string, error) {
	if value != "" {
		if _, err := netip.ParseAddr(value); err != nil {
			return "", fmt.Errorf("must be an IP address, or empty for every interface, got %q", value)
		}
	}
	return value, nil
}

// Token reads a secret that travels in a header; empty turns authentication off. The error does not
// show it: errors end in logs.
func Token(value string) (string, error) {
	for _, char := range []byte(value) {
		if char <= ' ' || char > '~' {
			return "", errors.New("must be visible ASCII without spaces, because it travels in an HTTP header")
		}
	}
	return value, nil
}
