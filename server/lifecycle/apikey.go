package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// KeySource is where an API key is kept.
type KeySource string

// The sources of keys.
const (
	KeyOfConfiguration KeySource = "configuration"
	KeyOfService       KeySource = "service"
)

const (
	// MaxKeys is how many API keys the service keeps, beside those of its configuration.
	MaxKeys = 10000
	// MaxKeyNames is how many names that keys had the service remembers: those that were held last.
	MaxKeyNames = 100000
	// MaxKeyName is the length of the name of a key that the service keeps, in bytes.
	MaxKeyName = 128
	// MaxKeyGrace is for how long a secret may stay valid after its rotation.
	MaxKeyGrace = 7 * 24 * time.Hour
)

// maxYear is the last one that RFC 3339 can write.
const maxYear = 9999

// A store's errors wrap these.
var (
	// ErrNameHeld means that a key of the name is there.
	ErrNameHeld = errors.New("a key of this name exists")
	// ErrNameUsed means that a key of the name was there.
	ErrNameUsed = errors.New("a key had this name before")
)

// APIKey is an API key as the service keeps and shows it, without its secret. Times that do not
// apply are zero.
type APIKey struct {
	Name       string
	Role       Role
	Source     KeySource
	CreatedAt  time.Time
	ExpiresAt  time.Time
	LastUsedAt time.Time // to a minute
	Limits     KeyLimits // those that only this key has
	Rate       *KeyRate  // nil: that of all keys
	// Digest is the SHA-256 of the secret.
	Digest []byte
	// PreviousDigest is that of the secret before the last rotation, which is valid until
	// PreviousUntil.
	PreviousDigest []byte
	PreviousUntil  time.Time
}

// Expired reports whether the key is not valid any more.
func (k APIKey) Expired(now time.Time) bool {
	return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt)
}

// KeyRate is how often a key may send requests.
type KeyRate struct {
	PerSecond int // 0 is no limit
	Burst     int // 0 is as many as PerSecond
}

// KeyLimits are what one key may ask for, where that is not what all keys may. Zero values leave it
// at that.
type KeyLimits struct {
	MaxSandboxes              int // counts sandboxes that have not ended; 0 is no limit
	DefaultCPU, DefaultMemory string
	MaxCPU, MaxMemory         string
	TotalCPU, TotalMemory     string
	MaxTimeout                time.Duration
}

// Over returns the bounds of all keys with the limits of this one in their place.
func (l KeyLimits) Over(all Bounds) Bounds {
	const section = "limits"
	all.Sandboxes = section + ".maxSandboxes"
	own := l
	own.MaxSandboxes = 0
	if own == (KeyLimits{}) {
		return all
	}
	merged := Bounds{
		Section: section, InRequest: true, Sandboxes: all.Sandboxes, MaxTimeout: cmp.Or(l.MaxTimeout, all.MaxTimeout),
	}
	merged.Default = all.Default.with(l.DefaultCPU, l.DefaultMemory)
	merged.Max = all.Max.with(l.MaxCPU, l.MaxMemory)
	merged.Total = all.Total.with(l.TotalCPU, l.TotalMemory)
	return merged
}

// with returns the limits with others in the place of theirs, but for those that are empty.
func (limits ResourceLimits) with(cpu, memory string) ResourceLimits {
	merged := ResourceLimits{}
	for key, value := range map[string]string{"cpu": cpu, "memory": memory} {
		if value == "" {
			value = limits[key]
		}
		if value != "" {
			merged[key] = value
		}
	}
	return merged
}

// reservedKeyNames are those of the configuration's first key and of requests to ports that no key
// lets in.
var reservedKeyNames = []string{"server.api_key", "signed endpoint", "token of the sandbox"}

// CheckKeyName returns an Error of KindInvalid for what the service does not call a key that it
// makes.
func CheckKeyName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return Invalidf("name: must not be blank")
	case len(name) > MaxKeyName:
		return Invalidf("name: must be at most %d bytes", MaxKeyName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return Invalidf("name: must not have control characters")
	case name == "." || name == "..":
		return Invalidf("name: must not be %q, which has a meaning of its own in a path", name)
	case slices.Contains(reservedKeyNames, name):
		return Invalidf("name: must not be %q, which the logs use for requests without such a key", name)
	}
	return nil
}

// CheckKeyExpiry returns an Error of KindInvalid for a key that would have expired already. The
// zero time is no expiry.
func CheckKeyExpiry(now, expiresAt time.Time) error {
	switch {
	case expiresAt.IsZero():
		return nil
	case !now.Before(expiresAt):
		return Invalidf("expiresAt: must be in the future")
	case expiresAt.UTC().Year() > maxYear:
		return Invalidf("expiresAt: must be before the year %d in UTC", maxYear+1)
	}
	return nil
}

// NoKey returns the Error of KindNoKey for a name.
func NoKey(name string) *Error {
	return &Error{Kind: KindNoKey, Message: fmt.Sprintf("there is no API key %.200q", name)}
}
