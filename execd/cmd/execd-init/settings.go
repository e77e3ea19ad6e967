package main

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"sandbox.internal/internal/supervisor"
)

// The defaults of package config, which reads the same settings for the daemon; it would make this
// program five times as large.
const (
	defaultPort  = "44772"
	defaultGrace = "3s"
)

// stopGraceVariable is set by a service whose engine kills the container later than the entrypoint
// is to end, so that execd's streams get their ends. No client can set it.
const stopGraceVariable = "EXECD_STOP_GRACE"

// stopSignalVariable has the image's STOPSIGNAL, as its author wrote it. What is no signal is left
// out: SIGTERM is sent then.
const stopSignalVariable = "EXECD_STOP_SIGNAL"

// settings are those of the daemon's settings that its first process needs too.
type settings struct {
	host  netip.Addr // invalid: every interface
	port  int
	grace time.Duration
	// stopGrace is how long the entrypoint may take to end after SIGTERM; 0 means as long as it
	// likes.
	stopGrace time.Duration
	// stopSignal is what the entrypoint gets in place of SIGTERM; 0 means SIGTERM.
	stopSignal syscall.Signal
}

// splitArgs divides the arguments at the first "--": flags of the daemon before it, the entrypoint
// after it. The "--" is required, so that no word of an entrypoint is ever taken for a flag.
func splitArgs(args []string) (flags, entrypoint []string, err error) {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return nil, nil, errors.New("usage: execd-init [flags of execd] -- entrypoint [arguments]: the entrypoint is missing")
	}
	return args[:at], args[at+1:], nil
}

// parse reads the settings from the daemon's flags and variables. What it does not read is the
// daemon's, which refuses what is wrong with it.
func parse(flags []string) (s settings, err error) {
	if text := supervisor.Setting(flags, "host", "", ""); text != "" {
		if s.host, err = netip.ParseAddr(text); err != nil {
			return s, errors.New("flag --host: must be an IP address, or empty for every interface, got " + strconv.Quote(text))
		}
	}
	text := supervisor.Setting(flags, "port", "", defaultPort)
	if s.port, err = strconv.Atoi(text); err != nil || s.port < 0 || s.port > 65535 {
		return s, errors.New("flag --port: must be a whole number from 0 to 65535, got " + strconv.Quote(text))
	}
	// The daemon refuses a bad one, before the entrypoint starts.
	s.grace, _ = time.ParseDuration(supervisor.Setting(flags, "graceful-shutdown-timeout", "EXECD_API_GRACE_SHUTDOWN", defaultGrace))
	s.stopSignal = supervisor.ParseSignal(os.Getenv(stopSignalVariable))
	if text := os.Getenv(stopGraceVariable); text != "" {
		if s.stopGrace, err = time.ParseDuration(text); err != nil || s.stopGrace < 0 {
			return s, errors.New("environment variable " + stopGraceVariable + ": must be a duration such as 2s, got " + strconv.Quote(text))
		}
	}
	return s, nil
}
