// Package config reads the settings of execd, the daemon inside each sandbox: the table "Daemon
// settings" of spec/execd.md, and the few settings that we add to it. An explicit flag overrides an
// environment variable, which overrides the default.
package config

import (
	"io"
	"net"
	"strconv"
	"time"

	"sandbox.internal/internal/settings"
)

// Settings are the effective settings of one daemon.
type Settings struct {
	// JupyterHost is the URL of the Jupyter Server that runs kernels; empty means that execd starts
	// installed kernels itself.
	JupyterHost string
	// JupyterToken is the Jupyter Server's token.
	JupyterToken string
	// Host is the IP address to listen on; empty means every interface.
	Host string
	// Port is the TCP port to listen on, 0 to 65535; with 0 the kernel chooses a free one.
	Port int
	// LogLevel is a syslog severity, 0 (Emergency) to 7 (Debug): messages of this severity and
	// worse are written.
	LogLevel int
	// LogFile is the path of the log; empty means the standard output.
	LogFile string
	// AccessToken is the secret that every request but /ping carries; empty turns authentication
	// off.
	AccessToken string
	// GracefulShutdownTimeout is how long streams stay open after their last event at shutdown; 0
	// means not at all.
	GracefulShutdownTimeout time.Duration
	// CommandLogLimit is the largest log that one command may leave behind, in bytes.
	CommandLogLimit int64
}

// Addr returns the address to listen on, in the form that net.Listen takes.
func (s Settings) Addr() string {
	return net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
}

// Parse computes the settings from the command line (without the program's name) and the
// environment. An empty variable counts as unset; an empty flag does not. The error names the flag
// or variable and the rule that it breaks. For -h and --help it writes the table of settings to
// usage and returns flag.ErrHelp.
func Parse(args []string, getenv func(string) string, usage io.Writer) (Settings, error) {
	return settings.Parse(table, args, getenv, usage)
}
