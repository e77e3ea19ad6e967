package lifecycle

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

// Bounds are what an API key may ask for, and what it gets where it asks for nothing. The zero
// value sets no bound.
type Bounds struct {
	// Section is where they are configured, which errors name, such as server.limits.
	Section string
	// InRequest says that they came in a request, whose fields have other names: maxCpu in place of
	// max_cpu.
	InRequest bool
	// Sandboxes is what the limit of their number is called; empty means server.keys.max_sandboxes.
	Sandboxes string
	// Default and Max are of one sandbox, Total of all sandboxes of the key together that have not
	// ended. An absent key sets none.
	Default, Max, Total ResourceLimits
	// MaxTimeout bounds the timeout of a sandbox, and by how much it is renewed; 0 is [MaxTimeout].
	MaxTimeout time.Duration
}

// name returns what the limit is called where it is configured: kind is default, max or total.
func (b Bounds) name(kind, of string) string {
	if b.InRequest {
		return b.Section + "." + kind + strings.ToUpper(of[:1]) + of[1:]
	}
	return b.Section + "." + kind + "_" + of
}

// boundedResources are the keys of resource limits that have bounds.
var boundedResources = []string{"cpu", "memory"}

// Validate returns an error for a quantity that cannot be read, and for a default above its
// maximum. It names the key of the section.
func (b Bounds) Validate() error {
	for _, key := range boundedResources {
		for kind, limits := range map[string]ResourceLimits{"default": b.Default, "max": b.Max, "total": b.Total} {
			if limits[key] == "" {
				continue
			}
			if _, err := (ResourceLimits{key: limits[key]}).Parse(); err != nil {
				return Invalidf("%s: %v", b.name(kind, key), err)
			}
		}
		if b.Default[key] != "" && b.Max[key] != "" && amount(b.Default, key) > amount(b.Max, key) {
			return Invalidf("%s: %s is more than %s, %s", b.name("default", key), b.Default[key], b.name("max", key), b.Max[key])
		}
	}
	return nil
}

// Usual returns what a sandbox gets that asks for nothing: the default, or else the maximum.
func (b Bounds) Usual() ResourceLimits {
	limits := ResourceLimits{}
	for _, key := range boundedResources {
		if usual := cmp.Or(b.Default[key], b.Max[key]); usual != "" {
			limits[key] = usual
		}
	}
	return limits
}

// Apply gives a valid spec what it does not ask for: the default, or else the maximum. It returns
// the errors of Check.
func (b Bounds) Apply(spec *Spec) error {
	given := maps.Clone(spec.Resources)
	for key, usual := range b.Usual() {
		if given[key] == "" {
			if given == nil {
				given = ResourceLimits{}
			}
			given[key] = usual
		}
	}
	spec.Resources = given
	return b.Check(*spec)
}

// Check returns an Error of KindInvalid that names the field, the bound and its key in the
// configuration when a valid spec asks for more than one sandbox may have, or for nothing where
// sandboxes of the key have a bound together.
func (b Bounds) Check(spec Spec) error {
	if b.MaxTimeout > 0 && spec.Timeout > b.MaxTimeout {
		return Invalidf("timeout: %d seconds is more than %d, which %s allows this API key",
			int64(spec.Timeout/time.Second), int64(b.MaxTimeout/time.Second), b.name("max", "timeout"))
	}
	for _, key := range boundedResources {
		switch given := spec.Resources[key]; {
		case given == "" && b.Total[key] != "":
			return Invalidf("resourceLimits.%s: is required of this API key, because %s bounds what its sandboxes have together", key, b.name("total", key))
		case b.Max[key] != "" && amount(spec.Resources, key) > amount(b.Max, key):
			return Invalidf("resourceLimits.%s: %.128q is more than %s, which %s allows this API key for one sandbox", key, given, b.Max[key], b.name("max", key))
		}
	}
	return nil
}

// CheckRenewal returns an Error of KindInvalid for an expiry that is further away than the key may
// ask for.
func (b Bounds) CheckRenewal(now, expiresAt time.Time) error {
	if b.MaxTimeout > 0 && expiresAt.Sub(now) > b.MaxTimeout {
		return Invalidf("expiresAt: must be at most %d seconds from now, which %s allows this API key", int64(b.MaxTimeout/time.Second), b.name("max", "timeout"))
	}
	return nil
}

// checkTotal returns an Error of KindConflict when a sandbox does not fit beside those of the key
// that have not ended.
func (b Bounds) checkTotal(owner string, used, asked Limits) error {
	for _, key := range boundedResources {
		if b.Total[key] == "" {
			continue
		}
		if total := amount(b.Total, key); of(used, key)+of(asked, key) > total {
			return Conflictf("resourceLimits.%s: the sandboxes of API key %q that have not ended would have more than %s together, and %s is that; "+
				"ask for less, delete one, or wait until one expires", key, owner, b.Total[key], b.name("total", key))
		}
	}
	return nil
}

// amount returns a valid quantity as a number.
func amount(limits ResourceLimits, key string) int64 {
	parsed, _ := ResourceLimits{key: limits[key]}.Parse()
	return of(parsed, key)
}

func of(limits Limits, key string) int64 {
	if key == "cpu" {
		return limits.NanoCPUs
	}
	return limits.MemoryBytes
}
