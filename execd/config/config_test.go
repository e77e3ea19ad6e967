package config_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"sandbox.internal/execd/config"
)

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestParsePrecedence(t *testing.T) {
	t.Parallel()
	defaults := config.Settings{
		Port: 44772, LogLevel: 6, GracefulShutdownTimeout: 3 * time.Second, CommandLogLimit: 1 << 30,
	}
	with := func(change func(*config.Settings)) config.Settings {
		s := defaults
		change(&s)
		return s
	}
	tests := []struct {
		name string
		args []string
		env  map[string]string
		want config.Settings
	}{
		{"defaults", nil, nil, defaults},
		{"empty variables count as unset", nil,
			map[string]string{"EXECD_API_GRACE_SHUTDOWN": "", "EXECD_LOG_FILE": "", "JUPYTER_HOST": ""}, defaults},
		{"variables override defaults", nil,
			map[string]string{"EXECD_API_GRACE_SHUTDOWN": "500ms", "EXECD_LOG_FILE": "/l", "EXECD_ACCESS_TOKEN": "secret"},
			with(func(s *config.Settings) {
				s.GracefulShutdownTimeout, s.LogFile, s.AccessToken = 500*time.Millisecond, "/l", "secret"
			})},
		{"row execd/settings/precedence", []string{"--graceful-shutdown-timeout=1m", "--access-token", "flag"},
			map[string]string{"EXECD_API_GRACE_SHUTDOWN": "2s", "EXECD_ACCESS_TOKEN": "variable"},
			with(func(s *config.Settings) { s.GracefulShutdownTimeout, s.AccessToken = time.Minute, "flag" })},
		{"an empty flag overrides a variable", []string{"--access-token="},
			map[string]string{"EXECD_ACCESS_TOKEN": "variable"}, defaults},
		{"a flag hides a bad variable", []string{"--graceful-shutdown-timeout=3s"},
			map[string]string{"EXECD_API_GRACE_SHUTDOWN": "soon"}, defaults},
		{"zero disables the graceful shutdown", []string{"--graceful-shutdown-timeout=0s"}, nil,
			with(func(s *config.Settings) { s.GracefulShutdownTimeout = 0 })},
		{"single dashes", []string{"-port", "1", "-log-level", "7"}, nil,
			with(func(s *config.Settings) { s.Port, s.LogLevel = 1, 7 })},
		{"host", []string{"--host=::1"}, nil, with(func(s *config.Settings) { s.Host = "::1" })},
		{"limit in bytes", []string{"--command-log-limit=4096"}, nil,
			with(func(s *config.Settings) { s.CommandLogLimit = 4096 })},
		{"limit in KiB", []string{"--command-log-limit=8KiB"}, nil,
			with(func(s *config.Settings) { s.CommandLogLimit = 8 << 10 })},
		{"limit in MiB", []string{"--command-log-limit=64MiB"}, nil,
			with(func(s *config.Settings) { s.CommandLogLimit = 64 << 20 })},
		{"limit in GiB", []string{"--command-log-limit=2GiB"}, nil,
			with(func(s *config.Settings) { s.CommandLogLimit = 2 << 30 })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse(tt.args, env(tt.env), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		env  map[string]string
		want []string
	}{
		{"port too large", []string{"--port=65536"}, nil, []string{"--port", "0 to 65535", `"65536"`}},
		{"port not a number", []string{"--port=http"}, nil, []string{"--port", "whole number"}},
		{"port empty", []string{"--port="}, nil, []string{"--port", "whole number"}},
		{"port negative", []string{"--port=-1"}, nil, []string{"--port"}},
		{"log level", []string{"--log-level=8"}, nil, []string{"--log-level", "0 to 7"}},
		{"negative duration", []string{"--graceful-shutdown-timeout=-1s"}, nil, []string{"--graceful-shutdown-timeout", "duration"}},
		{"duration without unit in a variable", nil, map[string]string{"EXECD_API_GRACE_SHUTDOWN": "3"},
			[]string{"environment variable EXECD_API_GRACE_SHUTDOWN", "500ms"}},
		{"host name", []string{"--host=localhost"}, nil, []string{"--host", "IP address"}},
		{"limit zero", []string{"--command-log-limit=0"}, nil, []string{"--command-log-limit", "positive"}},
		{"limit unit", []string{"--command-log-limit=1TB"}, nil, []string{"--command-log-limit", "64MiB"}},
		{"limit overflow", []string{"--command-log-limit=9999999999GiB"}, nil, []string{"--command-log-limit"}},
		{"jupyter host flag", []string{"--jupyter-host=k:8888"}, nil, []string{"--jupyter-host", "URL"}},
		{"jupyter host variable", nil, map[string]string{"JUPYTER_HOST": "ftp://k"}, []string{"JUPYTER_HOST", "URL"}},
		{"unknown flag", []string{"--prot=1"}, nil, []string{"-prot", "--help"}},
		{"flag without value", []string{"--port"}, nil, []string{"-port"}},
		{"argument", []string{"sleep"}, nil, []string{`"sleep"`, "only flags"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse(tt.args, env(tt.env), io.Discard)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestParseKeepsTheTokenOutOfErrors(t *testing.T) {
	t.Parallel()
	_, err := config.Parse(nil, env(map[string]string{"EXECD_ACCESS_TOKEN": "hush hush"}), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "EXECD_ACCESS_TOKEN") {
		t.Fatalf("error %v does not name the variable", err)
	}
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("error %q shows the token", err)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	_, err := config.Parse([]string{"--help"}, env(nil), &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("error is %v, want flag.ErrHelp", err)
	}
	for _, want := range []string{
		"--jupyter-host", "JUPYTER_HOST", "--jupyter-token", "JUPYTER_TOKEN", "--port", "44772", "--log-level",
		"--access-token", "EXECD_ACCESS_TOKEN", "--graceful-shutdown-timeout", "EXECD_API_GRACE_SHUTDOWN", "3s",
		"EXECD_LOG_FILE", "--host", "--command-log-limit", "1GiB",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help does not show %q:\n%s", want, out.String())
		}
	}
}

func TestAddr(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]config.Settings{
		":44772":     {Port: 44772},
		"[::1]:80":   {Host: "::1", Port: 80},
		"10.0.0.1:0": {Host: "10.0.0.1"},
	} {
		if got := s.Addr(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
