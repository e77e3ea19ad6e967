package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// setting is one row of the table: its names, its default in the notation of its flag, and how a value is checked
// and stored.
type setting struct {
	flag     string // without dashes; empty when there is only a variable
	env      string // empty when there is only a flag
	fallback string
	meaning  string
	set      func(*Settings, string) error
}

// table returns every setting, in the order of spec/execd.md; those after the log file are ours.
func table() []setting {
	return []setting{
		{"jupyter-host", "JUPYTER_HOST", "", "Jupyter Server URL; unset means that execd starts kernels itself", setJupyterHost},
		{"jupyter-token", "JUPYTER_TOKEN", "", "Jupyter Server token", setJupyterToken},
		{"port", "", "44772", "listen port; 0 takes any free one", setPort},
		{"log-level", "", "6", "0 Emergency, 1 Alert, 2 Critical, 3 Error, 4 Warning, 5 Notice, 6 Info, 7 Debug", setLogLevel},
		{"access-token", "EXECD_ACCESS_TOKEN", "", "shared API secret; empty turns authentication off", setAccessToken},
		{"graceful-shutdown-timeout", "EXECD_API_GRACE_SHUTDOWN", "3s", "how long streams stay open after their last event at shutdown; 0s disables", setGrace},
		{"", "EXECD_LOG_FILE", "", "log file; unset means standard output", setLogFile},
		{"host", "", "", "IP address to listen on; empty means every interface", setHost},
		{"command-log-limit", "", "1GiB", "largest log of one command: bytes, or a number with KiB, MiB or GiB", setCommandLogLimit},
	}
}

func writeUsage(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FLAG\tENVIRONMENT\tDEFAULT\tMEANING")
	for _, row := range table() {
		name := ""
		if row.flag != "" {
			name = "--" + row.flag
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", orDash(name), orDash(row.env), orDash(row.fallback), row.meaning)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write usage: %w", err)
	}
	_, err := fmt.Fprintln(w, "\nA flag overrides its environment variable, which overrides the default.")
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func setJupyterHost(s *Settings, value string) error {
	if value != "" {
		address, err := url.Parse(value)
		if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
			return errors.New("must be a URL such as http://127.0.0.1:8888")
		}
	}
	s.JupyterHost = value
	return nil
}

func setJupyterToken(s *Settings, value string) error {
	s.JupyterToken = value
	return nil
}

func setPort(s *Settings, value string) (err error) {
	s.Port, err = parseInt(value, 65535)
	return err
}

func setLogLevel(s *Settings, value string) (err error) {
	s.LogLevel, err = parseInt(value, 7)
	return err
}

func parseInt(value string, maximum int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maximum {
		return 0, fmt.Errorf("must be a whole number from 0 to %d, got %q", maximum, value)
	}
	return n, nil
}

// setAccessToken keeps the value itself out of the message: errors end in logs.
func setAccessToken(s *Settings, value string) error {
	for _, char := range []byte(value) {
		if char <= ' ' || char > '~' {
			return errors.New("must be visible ASCII without spaces, because it travels in an HTTP header")
		}
	}
	s.AccessToken = value
	return nil
}

func setGrace(s *Settings, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return fmt.Errorf("must be a duration such as 500ms, 2s or 1m (0s disables), got %q", value)
	}
	s.GracefulShutdownTimeout = d
	return nil
}

func setLogFile(s *Settings, value string) error {
	s.LogFile = value
	return nil
}

func setHost(s *Settings, value string) error {
	if value != "" {
		if _, err := netip.ParseAddr(value); err != nil {
			return fmt.Errorf("must be an IP address, or empty for every interface, got %q", value)
		}
	}
	s.Host = value
	return nil
}

func setCommandLogLimit(s *Settings, value string) error {
	digits, unit := value, int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if number, ok := strings.CutSuffix(value, suffix); ok {
			digits, unit = number, size
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return fmt.Errorf("must be a positive number of bytes, such as 1048576 or 64MiB, got %q", value)
	}
	s.CommandLogLimit = n * unit
	return nil
}
