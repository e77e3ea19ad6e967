package config

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// The environment variables of the document.
const (
	envConfigPath        = "SANDBOX_CONFIG_PATH"
	envDockerHost        = "DOCKER_HOST"
	envPendingFailureTTL = "PENDING_FAILURE_TTL"
)

// Environment holds the settings that come from environment variables.
type Environment struct {
	// DockerHost is the engine's URL (DOCKER_HOST): unix://PATH or tcp://HOST:PORT.
	DockerHost string
	// PendingFailureTTL is how long the record of a sandbox that failed while
	// Pending stays readable (PENDING_FAILURE_TTL).
	PendingFailureTTL Seconds
}

func defaultEnvironment() Environment {
	return Environment{DockerHost: "unix:///var/run/docker.sock", PendingFailureTTL: 3600}
}

// read overrides the defaults with the variables that are set.
func (e *Environment) read(p *problems, env func(string) string) {
	if host := env(envDockerHost); host != "" {
		e.DockerHost = host
	}
	if ttl := env(envPendingFailureTTL); ttl != "" {
		n, err := strconv.ParseInt(ttl, 10, 64)
		if err != nil {
			p.add(envPendingFailureTTL, "must be a whole number of seconds (got %q)", ttl)
			return
		}
		e.PendingFailureTTL = Seconds(n)
	}
}

func (e Environment) check(p *problems) {
	e.PendingFailureTTL.check(p, envPendingFailureTTL, 0)
	if err := checkDockerHost(e.DockerHost); err != nil {
		p.add(envDockerHost, "%w", err)
	}
}

// engineIsHere reports whether the engine runs on the service's own machine.
func (e Environment) engineIsHere() bool {
	u, err := url.Parse(e.DockerHost)
	if err != nil || u.Scheme != "tcp" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// checkDockerHost keeps the value out of its errors: a URL may hold a password.
func checkDockerHost(host string) error {
	errForm := errors.New("must be unix:///PATH or tcp://HOST:PORT")
	u, err := url.Parse(host)
	if err != nil || u.User != nil {
		return errForm
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || u.Path == "" || u.Path == "/" {
			return errForm
		}
	case "tcp":
		name, port, err := net.SplitHostPort(u.Host)
		n, errPort := strconv.Atoi(port)
		if err != nil || errPort != nil || n < 1 || n > 65535 || !isHost(name) {
			return errForm
		}
	default:
		return errForm
	}
	return nil
}

// Path says which file to load: flag if it is not empty, else the variable
// SANDBOX_CONFIG_PATH, else ~/.sandbox.toml. The file need not exist. It fails
// when nothing is given and HOME is not set.
func Path(flag string, env func(string) string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if path := env(envConfigPath); path != "" {
		return expandHome(path, env), nil
	}
	home := env("HOME")
	if home == "" {
		return "",
			errors.New("no configuration file: give --config, or set SANDBOX_CONFIG_PATH or HOME")
	}
	return filepath.Join(home, ".sandbox.toml"), nil
}

// expandHome resolves a leading "~/" when HOME is set.
func expandHome(path string, env func(string) string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	if home := env("HOME"); ok && home != "" {
		return filepath.Join(home, rest)
	}
	return path
}
