package lifecycle

import (
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of the lifecycle document, and ours where it is silent.
const (
	MinTimeout = 60 * time.Second
	MaxTimeout = 86400 * time.Second

	MaxImage = 1024 // bytes of a reference: more than registries and engines accept

	// MaxMetadataPairs is how many pairs metadata may have: listings have an index of each.
	MaxMetadataPairs = 256
	MaxMetadataKey   = 256  // bytes
	MaxMetadataValue = 4096 // bytes
	// MaxMetadata is how many bytes all keys and values have together. A request to create cannot
	// hold more; patches could add up.
	MaxMetadata = 1 << 20
)

// Validate returns an Error of KindInvalid that names the first field that breaks a rule, and the
// rule.
func (s *Spec) Validate() error {
	if strings.TrimSpace(s.Image) == "" {
		return Invalidf("image.uri: must name an image")
	}
	if len(s.Image) > MaxImage {
		return Invalidf("image.uri: must be at most %d bytes, has %d", MaxImage, len(s.Image))
	}
	if s.Auth != nil && (s.Auth.Username == "" || s.Auth.Password == "") {
		return Invalidf("image.auth: username and password must both be set")
	}
	if s.Timeout < MinTimeout || s.Timeout > MaxTimeout {
		return Invalidf("timeout: must be within 60 and 86400 seconds, got %d", int64(s.Timeout/time.Second))
	}
	if err := s.validateEntrypoint(); err != nil {
		return err
	}
	if err := s.Resources.validate(); err != nil {
		return err
	}
	if err := checkRequests(s.Requests, s.Resources); err != nil {
		return err
	}
	if err := validateEnv(s.Env); err != nil {
		return err
	}
	if err := validateMetadata(s.Metadata); err != nil {
		return err
	}
	if err := s.NetworkPolicy.Validate(); err != nil {
		return err
	}
	if err := s.Lifecycle.Validate(); err != nil {
		return err
	}
	return validateVolumes(s.Volumes)
}

func (s *Spec) validateEntrypoint() error {
	switch {
	case s.ImageEntrypoint && s.Entrypoint != nil:
		return Invalidf("entrypoint: must be left out when imageEntrypoint is true")
	case s.ImageEntrypoint:
		return nil
	case s.Entrypoint == nil:
		return Invalidf("entrypoint: is required, unless imageEntrypoint is true")
	case len(s.Entrypoint) == 0 || s.Entrypoint[0] == "":
		return Invalidf("entrypoint: must be a non-empty array whose first item names an executable")
	}
	for i, arg := range s.Entrypoint {
		if strings.ContainsRune(arg, 0) {
			return Invalidf("entrypoint[%d]: must not contain a NUL byte", i)
		}
	}
	return nil
}

// IdleEntrypoint returns an entrypoint that does nothing until the sandbox is to end. It is in
// every sandbox, whatever its image has.
func IdleEntrypoint() []string { return []string{DaemonPath + "/execd-init", "idle"} }

// The settings of the sandbox's daemon that a client may give (execd document, "Daemon settings").
// Every other name with the prefix is the daemon's own, the token's above all.
const (
	daemonPrefix = "EXECD_"
	envGrace     = "EXECD_API_GRACE_SHUTDOWN"
	envLogFile   = "EXECD_LOG_FILE"
)

// ReservedEnv reports whether a name is that of a variable of the sandbox's daemon that a client
// may not give.
func ReservedEnv(name string) bool {
	return strings.HasPrefix(name, daemonPrefix) && name != envGrace && name != envLogFile
}

func validateEnv(env map[string]string) error {
	for _, name := range sortedKeys(env) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return Invalidf("env: %.128q is not a variable name: it must be non-empty and contain neither '=' nor a NUL byte", name)
		case ReservedEnv(name):
			return Invalidf("env.%.128s: names that begin with %s are reserved for the sandbox's daemon, but for its settings %s and %s",
				name, daemonPrefix, envGrace, envLogFile)
		case strings.ContainsRune(env[name], 0):
			return Invalidf("env.%.128s: must not contain a NUL byte", name)
		}
		if d, err := time.ParseDuration(env[name]); name == envGrace && env[name] != "" && (err != nil || d < 0) {
			return Invalidf("env.%s: must be a duration such as 500ms, 2s or 1m (0s disables), not %.40q", name, env[name])
		}
	}
	return nil
}

// How long streams of a sandbox's daemon stay open at its stop (execd document,
// --graceful-shutdown-timeout), and what counts of more than that.
const (
	defaultDaemonGrace = 3 * time.Second
	maxDaemonGrace     = 30 * time.Second
)

// DaemonGrace returns how long streams of the sandbox's daemon stay open when the sandbox is
// stopped. A client may ask for more than 30 s; that does not hold the sandbox for longer.
func (s *Spec) DaemonGrace() time.Duration {
	grace, err := time.ParseDuration(s.Env[envGrace])
	if err != nil { // it is not set: Validate refuses what is no duration
		return defaultDaemonGrace
	}
	return min(grace, maxDaemonGrace)
}

// DaemonFlags returns flags for the sandbox's daemon. The daemon's own log goes to a small file in
// the sandbox: only warnings, and all of it to a file that the client names.
func (s *Spec) DaemonFlags() []string {
	if s.Env[envLogFile] != "" {
		return nil
	}
	return []string{"--log-level=4"}
}

func validateMetadata(metadata map[string]string) error {
	if len(metadata) > MaxMetadataPairs {
		return Invalidf("metadata: must have at most %d pairs, has %d", MaxMetadataPairs, len(metadata))
	}
	total := 0
	for _, key := range sortedKeys(metadata) {
		total += len(key) + len(metadata[key])
		switch {
		case total > MaxMetadata:
			return Invalidf("metadata: all keys and values together must have at most %d bytes", MaxMetadata)
		case key == "" || len(key) > MaxMetadataKey || !utf8.ValidString(key):
			return Invalidf("metadata: key %.128q must be 1 to %d bytes of UTF-8", key, MaxMetadataKey)
		case strings.HasPrefix(key, LabelPrefix):
			return Invalidf("metadata: key %q: keys that begin with %s are reserved", key, LabelPrefix)
		case len(metadata[key]) > MaxMetadataValue || !utf8.ValidString(metadata[key]):
			return Invalidf("metadata.%s: must be at most %d bytes of UTF-8", key, MaxMetadataValue)
		}
	}
	return nil
}

// CheckRenewal returns an Error of KindInvalid unless an expiry may be moved from current to wanted
// at the time now.
func CheckRenewal(now, current, wanted time.Time) error {
	switch {
	case !wanted.After(now):
		return Invalidf("expiresAt: must be in the future, got %s at %s", stamp(wanted), stamp(now))
	case !wanted.After(current):
		return Invalidf("expiresAt: must be later than the current expiry %s, got %s", stamp(current), stamp(wanted))
	case wanted.Sub(now) > MaxTimeout:
		return Invalidf("expiresAt: must be at most %d seconds from now, got %s", int64(MaxTimeout/time.Second), stamp(wanted))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Validate returns an Error of KindInvalid for a page that cannot be had.
func (p Page) Validate() error {
	if p.Number < 1 {
		return Invalidf("page: must be at least 1, got %d", p.Number)
	}
	if p.Size < 1 || p.Size > MaxPageSize {
		return Invalidf("pageSize: must be within 1 and %d, got %d", MaxPageSize, p.Size)
	}
	return nil
}

// CheckPort returns an Error of KindInvalid unless the port is a TCP port.
func CheckPort(port int) error {
	if port < 1 || port > 65535 {
		return Invalidf("port: must be within 1 and 65535, got %d", port)
	}
	return nil
}

// ParseState returns the state with that name in any case, or an Error of KindInvalid that lists
// the names.
func ParseState(name string) (State, error) {
	for _, state := range States() {
		if strings.EqualFold(name, string(state)) {
			return state, nil
		}
	}
	return "", Invalidf("state: %.128q is not a state; the states are %s", name, fmt.Sprint(States()))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
