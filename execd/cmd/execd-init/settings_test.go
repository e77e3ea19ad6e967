package main

import (
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/config"
	"sandbox.internal/internal/supervisor"
)

// TestSettingsAreExecds: execd-init reads the settings that it shares with execd as execd does.
func TestSettingsAreExecds(t *testing.T) {
	tests := map[string]struct {
		flags string
		grace string
	}{
		"defaults":                 {"", ""},
		"flags":                    {"--port=1 --host=127.0.0.1 --graceful-shutdown-timeout=2s", "7s"},
		"single dashes and spaces": {"-port 0 -host ::1 -graceful-shutdown-timeout 0s", ""},
		"the last one counts":      {"--port=1 --log-level 4 --port 2", ""},
		"empty":                    {"--host=", ""},
		"variable":                 {"--port=3", "500ms"},
		"a value like a flag":      {"--access-token --port=9 --port=4", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("EXECD_API_GRACE_SHUTDOWN", test.grace)
			flags := strings.Fields(test.flags)
			want, err := config.Parse(flags, func(variable string) string {
				return map[string]string{"EXECD_API_GRACE_SHUTDOWN": test.grace}[variable]
			}, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parse(flags)
			if err != nil {
				t.Fatal(err)
			}
			host := ""
			if got.host.IsValid() {
				host = got.host.String()
			}
			if got.port != want.Port || host != want.Host || got.grace != want.GracefulShutdownTimeout {
				t.Errorf("got port %d, host %q, grace %v; execd has %+v", got.port, host, got.grace, want)
			}
		})
	}
}

func TestStopGrace(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0s": 0, "2s": 2 * time.Second} {
		t.Setenv("EXECD_STOP_GRACE", text)
		if got, err := parse(nil); err != nil || got.stopGrace != want {
			t.Errorf("%q: %v, %v", text, got.stopGrace, err)
		}
	}
	for _, text := range []string{"2", "-2s"} {
		t.Setenv("EXECD_STOP_GRACE", text)
		if _, err := parse(nil); err == nil || !strings.Contains(err.Error(), "EXECD_STOP_GRACE") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestStopSignal: what is no signal is the image's mistake, and stops no sandbox from starting.
func TestStopSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{"": 0, "SIGQUIT": syscall.SIGQUIT, "NOSUCH": 0} {
		t.Setenv("EXECD_STOP_SIGNAL", text)
		if got, err := parse(nil); err != nil || got.stopSignal != want {
			t.Errorf("%q: %v, %v", text, got.stopSignal, err)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		host    string
		reached []string // addresses at which a connection reaches the socket
		not     []string
	}{
		"every interface":      {"", []string{"127.0.0.1", "[::1]"}, nil},
		"one of version 4":     {"127.0.0.2", []string{"127.0.0.2"}, []string{"127.0.0.1", "[::1]"}},
		"version 4 in 6":       {"::ffff:127.0.0.3", []string{"127.0.0.3"}, []string{"127.0.0.1"}},
		"version 6":            {"::1", []string{"[::1]"}, []string{"127.0.0.1"}},
		"zone by name":         {"::1%lo", []string{"[::1]"}, []string{"127.0.0.1"}},
		"zone by number":       {"::1%" + strconv.Itoa(loopback.Index), []string{"[::1]"}, nil},
		"all of version 4":     {"0.0.0.0", []string{"127.0.0.1"}, []string{"[::1]"}},
		"all of both, spelled": {"::", []string{"127.0.0.1", "[::1]"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, err := parse([]string{"--host=" + test.host, "--port=0"})
			if err != nil {
				t.Fatal(err)
			}
			file, err := supervisor.Listen(settings.host, settings.port, "the port of execd")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			listener, err := net.FileListener(file)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
			for _, host := range test.reached {
				connection, err := net.DialTimeout("tcp", host+":"+port, 10*time.Second)
				if err != nil {
					t.Error(err)
					continue
				}
				connection.Close()
			}
			for _, host := range test.not {
				if connection, err := net.DialTimeout("tcp", host+":"+port, 10*time.Second); err == nil {
					t.Errorf("%s is reached", host)
					connection.Close()
				}
			}
		})
	}
}

func TestSplitArgs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, args, flags, entrypoint string
		fails                         bool
	}{
		{"flags and entrypoint", "--port=1 -- sh -c x", "--port=1", "sh -c x", false},
		{"no flags", "-- true", "", "true", false},
		{"a second separator is the entrypoint's", "-- sh -- x", "", "sh -- x", false},
		{"no separator", "sleep 1", "", "", true},
		{"no entrypoint", "--port=1 --", "", "", true},
		{"nothing", "", "", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			flags, entrypoint, err := splitArgs(strings.Fields(tt.args))
			if (err != nil) != tt.fails {
				t.Fatalf("error is %v", err)
			}
			if got := strings.Join(flags, " "); got != tt.flags {
				t.Errorf("flags are %q, want %q", got, tt.flags)
			}
			if got := strings.Join(entrypoint, " "); got != tt.entrypoint {
				t.Errorf("entrypoint is %q, want %q", got, tt.entrypoint)
			}
		})
	}
}
