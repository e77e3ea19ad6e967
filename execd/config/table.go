package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/internal/settings"
)

// table holds every setting, in the order of spec/execd.md; those after the log file are ours.
var table = []settings.Setting[Settings]{
	{Flag: "jupyter-host", Env: "JUPYTER_HOST", Meaning: "Jupyter Server URL; unset means that execd starts kernels itself", Set: setJupyterHost},
	{Flag: "jupyter-token", Env: "JUPYTER_TOKEN", Meaning: "Jupyter Server token", Set: setJupyterToken},
	{Flag: "port", Default: "44772", Meaning: "listen port; 0 takes any free one", Set: setPort},
	{Flag: "log-level", Default: "6", Meaning: settings.LogLevels, Set: setLogLevel},
	{Flag: "access-token", Env: "EXECD_ACCESS_TOKEN", Meaning: "shared API secret; empty turns authentication off", Set: setAccessToken},
	{
		Flag: "graceful-shutdown-timeout", Env: "EXECD_API_GRACE_SHUTDOWN", Default: "3s",
		Meaning: "how long streams stay open after their last event at shutdown; 0s disables", Set: setGrace,
	},
	{Env: "EXECD_LOG_FILE", Meaning: "log file; unset means standard output", Set: setLogFile},
	{Flag: "host", Meaning: "IP address to listen on; empty means every interface", Set: setHost},
	{
		Flag: "command-log-limit", Default: "1GiB",
		Meaning: "largest log of one command: bytes, or a number with KiB, MiB or GiB", Set: setCommandLogLimit,
	},
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
	s.Port, err = settings.Port(value)
	return err
}

func setLogLevel(s *Settings, value string) (err error) {
	s.LogLevel, err = settings.LogLevel(value)
	return err
}

func setAccessToken(s *Settings, value string) (err error) {
	s.AccessToken, err = settings.Token(value)
	return err
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

func setHost(s *Settings, value string) (err error) {
	s.Host, err = settings.Host(value)
	return err
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
