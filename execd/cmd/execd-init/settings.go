package main

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The defaults of package config, which reads the same settings for the daemon; it would make this program five times as large.
const (
	defaultPort  = "44772"
	defaultGrace = "3s"
)

// settings are those of the daemon's settings that its first process needs too.
type settings struct {
	host  netip.Addr // invalid: every interface
	port  int
	grace time.Duration
}

// splitArgs divides the arguments at the first "--": flags of the daemon before it, the entrypoint after it. The "--" is required, so that no
// word of an entrypoint is ever taken for a flag.
func splitArgs(args []string) (flags, entrypoint []string, err error) {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return nil, nil, errors.New("usage: execd-init [flags of execd] -- entrypoint [arguments]: the entrypoint is missing")
	}
	return args[:at], args[at+1:], nil
}

// parse reads the settings from the daemon's flags and variables. What it does not read is the daemon's, which refuses what is wrong with it.
func parse(flags []string) (s settings, err error) {
	if text := value(flags, "host", "", ""); text != "" {
		if s.host, err = netip.ParseAddr(text); err != nil {
			return s, errors.New("flag --host: must be an IP address, or empty for every interface, got " + strconv.Quote(text))
		}
	}
	text := value(flags, "port", "", defaultPort)
	if s.port, err = strconv.Atoi(text); err != nil || s.port < 0 || s.port > 65535 {
		return s, errors.New("flag --port: must be a whole number from 0 to 65535, got " + strconv.Quote(text))
	}
	// The daemon refuses a bad one, before the entrypoint starts.
	s.grace, _ = time.ParseDuration(value(flags, "graceful-shutdown-timeout", "EXECD_API_GRACE_SHUTDOWN", defaultGrace))
	return s, nil
}

// value returns what a flag has, as package flag reads it where every flag takes a value; else what the variable has, else the default.
func value(flags []string, name, variable, otherwise string) string {
	if text := os.Getenv(variable); text != "" {
		otherwise = text
	}
	for len(flags) > 0 {
		given, text, inline := strings.Cut(flags[0], "=")
		flags = flags[1:]
		if !inline && len(flags) > 0 {
			text, flags = flags[0], flags[1:]
		}
		if given == "-"+name || given == "--"+name {
			otherwise = text
		}
	}
	return otherwise
}
