package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// LogLevel is the verbosity of the service's log.
type LogLevel string

// The log levels of the document, from the most to the least verbose.
const (
	LogLevelDebug   LogLevel = "DEBUG"
	LogLevelInfo    LogLevel = "INFO"
	LogLevelWarning LogLevel = "WARNING"
	LogLevelError   LogLevel = "ERROR"
)

func logLevels() []LogLevel {
	return []LogLevel{LogLevelDebug, LogLevelInfo, LogLevelWarning, LogLevelError}
}

// CompatibilityOpenSandbox lets clients of OpenSandbox use the service.
const CompatibilityOpenSandbox = "opensandbox"

const (
	// minAPIKeyLength is the length that the document advises ("Authentication").
	minAPIKeyLength = 32
	// maxImage is how many bytes the reference of an image may have in a request.
	maxImage = 1024
	// rootDataDir is where the records live when the service runs as root.
	rootDataDir = "/var/lib/sandbox-server"
)

// Server is the section [server]: the listener, its keys and its records. Empty strings are unset.
type Server struct {
	// Host is the bind address: an IP address or a host name, without a port. With one address
	// instead of all, sandboxes are published on that address only; with a name, on all.
	Host string `toml:"host"`
	// Port is the listen port, 1 to 65535; 0 takes any free port, which the log shows.
	Port int `toml:"port"`
	// LogLevel is the least level that is logged: DEBUG, INFO, WARNING or ERROR, in any case.
	LogLevel LogLevel `toml:"log_level"`
	// APIKey is a key with the role admin, in plain text: visible ASCII characters. Fewer than 32
	// cause a warning at each start.
	APIKey string `toml:"api_key"`
	// APIKeyFile is the path of a file that holds that key instead; white space around it is
	// dropped. A file that is missing or empty, or a second key in server.api_key, is refused.
	//
	// [Load] reads the file into APIKey.
	APIKeyFile string `toml:"api_key_file"`
	// DataDir is the directory of the records. A directory that another server uses is refused.
	DataDir string `toml:"data_dir"`
	// Instance is the name of this service at its engine: 1 to 63 lower-case letters, digits and
	// inner hyphens. A service touches only containers of its own instance, so services that share
	// an engine need different names.
	Instance string `toml:"instance"`
	// TerminatedRetention is how long the record of an ended sandbox can be read, 0 to 315360000;
	// then it is 404. Ended sandboxes have 256 MiB of memory together: the oldest of the key that
	// has the most are forgotten before.
	TerminatedRetention Seconds `toml:"terminated_retention"`
	// MaxConnections is the highest number of connections of clients, 1 to 1000000; more wait until
	// one ends, or take the places of those that have not shown a key.
	MaxConnections int `toml:"max_connections"`
	// DefaultImage is the image that clients use for a sandbox whose user names none: a reference
	// of at most 1024 bytes. Unset: they refuse such a create.
	DefaultImage string `toml:"default_image"`
	// DefaultTimeout is how long a sandbox lives where its user does not say, 60 to 86400; clients
	// ask for at most what their key's max_timeout allows.
	DefaultTimeout Seconds `toml:"default_timeout"`
	// MaxSandboxes is how many sandboxes that have not ended there may be, of all keys together, 0
	// to 1000000; 0 is no limit. A create beyond it is 409.
	MaxSandboxes int `toml:"max_sandboxes"`
	// MaxSnapshots is how many snapshots the sandboxes of one API key may have, 0 to 1000000; 0 is
	// no limit. A snapshot beyond it is 409.
	MaxSnapshots int `toml:"max_snapshots"`
	// MaxSnapshotsMiB is how much disk the snapshots of one API key may have added together, in
	// MiB, 0 to 1000000000; 0 is no limit but the disk. The exclusiveSize of each that has not
	// failed counts: what it added when it was taken, and what deleted ones have left to it. A
	// snapshot when it is used up is 409; one that would need more than what is left of it fails.
	MaxSnapshotsMiB int64 `toml:"max_snapshots_mib"`
	// RateLimit bounds how often the service may be called.
	RateLimit RateLimits `toml:"rate_limit"`
	// Limits are what API keys may ask for.
	Limits Limits `toml:"limits"`
	// AuditLog is the path of the file that records every request which changes something, see
	// docs/security.md. Unset: there is none. A file that is damaged or in use is refused.
	AuditLog string `toml:"audit_log"`
	// SigningKey is the path of the file with the keys that sign endpoints, one a line, each of at
	// least 32 characters, see docs/security.md. A path that is set must exist.
	SigningKey string `toml:"signing_key"`
	// MCP is whether agents may use the service over the Model Context Protocol, at /mcp, with the
	// same keys.
	MCP bool `toml:"mcp"`
	// Console is whether people may use the service in a browser, at /console, with the same keys.
	Console bool `toml:"console"`
	// DebugAddress is the address and port of the profiler: a loopback address. Unset: there is no
	// profiler.
	DebugAddress string `toml:"debug_address"`
	// Compatibility names other projects whose clients may use this service: opensandbox, see
	// docs/compatibility.md, and e2b, see docs/e2b.md.
	Compatibility []string `toml:"compatibility"`
	// Keys are further API keys, of which only the digests are configured.
	Keys []Key `toml:"keys"`
}

func defaultServer(env func(string) string) Server {
	return Server{
		Host:                "0.0.0.0",
		Port:                8080,
		LogLevel:            LogLevelInfo,
		DataDir:             defaultDataDir(os.Geteuid(), env),
		Instance:            "default",
		TerminatedRetention: 3600,
		MaxConnections:      10_000,
		DefaultTimeout:      3600,
		MaxSnapshots:        100,
		Compatibility:       []string{},
		MCP:                 true,
		Console:             true,
		Keys:                []Key{},
	}
}

// defaultDataDir follows the XDG base directory rules for everyone but root. It
// is empty when a user has neither variable; the rules then ask for the key.
func defaultDataDir(euid int, env func(string) string) string {
	if euid == 0 {
		return rootDataDir
	}
	if state := env("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "sandbox-server")
	}
	if home := env("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "sandbox-server")
	}
	return ""
}

func (s *Server) normalise(env func(string) string) {
	if level := LogLevel(strings.ToUpper(string(s.LogLevel))); slices.Contains(logLevels(), level) {
		s.LogLevel = level
	}
	s.APIKeyFile = expandHome(s.APIKeyFile, env)
	s.DataDir = expandHome(s.DataDir, env)
	s.AuditLog = expandHome(s.AuditLog, env)
	s.SigningKey = expandHome(s.SigningKey, env)
	for i := range s.Keys {
		s.Keys[i].SHA256 = strings.ToLower(s.Keys[i].SHA256)
	}
}

// dnsLabel is the form of names that must fit a label value, a container name
// and a volume name alike, and of namespaces.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (s Server) check(p *problems) {
	if !isHost(s.Host) {
		p.add("server.host", "must be an IP address or a host name (got %q)", s.Host)
	}
	if s.Port < 0 || s.Port > 65535 {
		p.add("server.port", "must be between 1 and 65535, or 0 for any free port (got %d)", s.Port)
	}
	checkOneOf(p, "server.log_level", s.LogLevel, logLevels()...)
	s.checkAPIKey(p)
	switch {
	case s.DataDir == "":
		p.add("server.data_dir",
			"is required (it has a default only for root, or with XDG_STATE_HOME or HOME set)")
	case !filepath.IsAbs(s.DataDir):
		p.add("server.data_dir",
			"must be an absolute path, or begin with ~/ while HOME is set (got %q)", s.DataDir)
	}
	if !dnsLabel.MatchString(s.Instance) {
		p.add("server.instance",
			"must be 1 to 63 lower-case letters, digits and inner hyphens (got %q)", s.Instance)
	}
	s.TerminatedRetention.check(p, "server.terminated_retention", 0)
	if s.MaxConnections < 1 || s.MaxConnections > 1_000_000 {
		p.add("server.max_connections", "must be between 1 and 1000000 (got %d)", s.MaxConnections)
	}
	checkLimit(p, "server.max_sandboxes", s.MaxSandboxes)
	checkLimit(p, "server.max_snapshots", s.MaxSnapshots)
	if s.MaxSnapshotsMiB < 0 || s.MaxSnapshotsMiB > 1_000_000_000 {
		p.add("server.max_snapshots_mib", "must be between 0 (no limit) and 1000000000 (got %d)", s.MaxSnapshotsMiB)
	}
	if s.DefaultTimeout < 60 || s.DefaultTimeout > 86400 {
		p.add("server.default_timeout", "must be from 60 to 86400 seconds (got %d)", int64(s.DefaultTimeout))
	}
	if len(s.DefaultImage) > maxImage {
		p.add("server.default_image", "must be a reference of at most %d bytes (got %d)", maxImage, len(s.DefaultImage))
	}
	for _, name := range s.Compatibility {
		checkOneOf(p, "server.compatibility", name, CompatibilityOpenSandbox, CompatibilityE2B)
	}
	s.RateLimit.check(p)
	s.Limits.check(p, "server.limits")
	if s.AuditLog != "" && (!filepath.IsAbs(s.AuditLog) || strings.HasSuffix(s.AuditLog, "/")) {
		p.add("server.audit_log",
			"must be the absolute path of a file, or begin with ~/ while HOME is set (got %q)",
			s.AuditLog)
	}
	if s.SigningKey != "" &&
		(!filepath.IsAbs(s.SigningKey) || strings.HasSuffix(s.SigningKey, "/")) {
		p.add("server.signing_key",
			"must be the absolute path of a file, or begin with ~/ while HOME is set (got %q)",
			s.SigningKey)
	}
	if s.DebugAddress != "" && !isLoopbackAddress(s.DebugAddress) {
		p.add("server.debug_address",
			"must be a loopback address with a port, such as 127.0.0.1:6060: no one else may reach the profiler (got %q)", s.DebugAddress)
	}
	checkKeys(p, s.Keys, s.APIKey)
}

// readAPIKey takes the key from its file. A key that cannot be had is never the same as none.
func (s *Server) readAPIKey(p *problems) {
	const key = "server.api_key_file"
	switch {
	case s.APIKeyFile == "":
		return
	case s.APIKey != "":
		p.add(key, "cannot be set together with server.api_key: leave one of them out")
		return
	case !filepath.IsAbs(s.APIKeyFile):
		p.add(key,
			"must be the absolute path of a file, or begin with ~/ while HOME is set (got %q)",
			s.APIKeyFile)
		return
	}
	content, err := os.ReadFile(s.APIKeyFile)
	if err != nil {
		p.add(key, "%w", err)
		return
	}
	if s.APIKey = strings.TrimSpace(string(content)); s.APIKey == "" {
		p.add(key, "is an empty file: write the key into it (%s)", s.APIKeyFile)
	}
}

func (s Server) checkAPIKey(p *problems) {
	switch {
	case s.APIKey == maskedSecret:
		// A server that loads the output of Print must not have a public key.
		p.add("server.api_key",
			"is the mask that stands for the key in printed settings: write the real key")
	case strings.ContainsFunc(s.APIKey, notHeaderSafe):
		p.add("server.api_key",
			"must be visible ASCII characters, because clients send it in a header")
	}
}

// notHeaderSafe reports characters that a header value loses or cannot carry.
func notHeaderSafe(r rune) bool { return r <= ' ' || r > '~' }

func (s Server) hasKey() bool { return s.APIKey != "" || len(s.Keys) > 0 }

// Exposed returns what it means that the service listens on other addresses than loopback and
// demands no key; "" when it does not.
func (c Config) Exposed() string {
	if c.Server.hasKey() || isLoopback(c.Server.Host) {
		return ""
	}
	means := "everyone who reaches it can run programs on this machine, and read and end every sandbox"
	if c.Storage.HostVolumes && len(c.Storage.AllowedHostPaths) == 0 {
		means += "; since storage.allowed_host_paths is empty, they can also read and change files of this machine outside of its system, as root"
	}
	return fmt.Sprintf(
		"the service listens on %s (server.host) and demands no API key (server.api_key, server.keys): %s. "+
			"Set a key, or listen on 127.0.0.1", c.Server.Host, means)
}

func (s Server) warnings() []string {
	var w []string
	if !s.hasKey() && isLoopback(s.Host) {
		w = append(w,
			"no API key is configured (server.api_key, server.keys): every user and program of this machine controls the service")
	}
	if s.APIKey != "" && len(s.APIKey) < minAPIKeyLength {
		w = append(w, "server.api_key is shorter than the advised 32 characters")
	}
	return w
}
