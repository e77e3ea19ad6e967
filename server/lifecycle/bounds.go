package lifecycle

import "time"

// Bounds are what an API key may ask for, and what it gets where it asks for nothing. The zero value sets no bound.
type Bounds struct {
	// Section is where they are configured, which errors name, such as server.limits.
	Section string
	// Default and Max are of one sandbox, Total of all sandboxes of the key together that have not ended. An absent key sets none.
	Default, Max, Total ResourceLimits
	// MaxTimeout bounds the timeout of a sandbox, and by how much it is renewed; 0 is [MaxTimeout].
	MaxTimeout time.Duration
}

// boundedResources are the keys of resource limits that have bounds.
var boundedResources = []string{"cpu", "memory"}

// Validate returns an error for a quantity that cannot be read, and for a default above its maximum. It names the key of the section.
func (b Bounds) Validate() error {
	for _, key := range boundedResources {
		for kind, limits := range map[string]ResourceLimits{"default_": b.Default, "max_": b.Max, "total_": b.Total} {
			if limits[key] == "" {
				continue
			}
			if _, err := (ResourceLimits{key: limits[key]}).Parse(); err != nil {
				return Invalidf("%s.%s%s: %v", b.Section, kind, key, err)
			}
		}
		if b.Default[key] != "" && b.Max[key] != "" && amount(b.Default, key) > amount(b.Max, key) {
			return Invalidf("%s.default_%s: %s is more than max_%[2]s, %s", b.Section, key, b.Default[key], b.Max[key])
		}
	}
	return nil
}

// Apply gives a valid spec what it does not ask for: the default, or else the maximum. It returns an Error of KindInvalid that names the field, the bound
// and its key in the configuration when the spec asks for more than one sandbox may have.
func (b Bounds) Apply(spec *Spec) error { return b.apply(spec, true) }

// ApplyToPool is Apply for a spec whose sandbox runs in a pod that exists: that has its limits already, so what the spec does not ask for stays open.
func (b Bounds) ApplyToPool(spec *Spec) error { return b.apply(spec, false) }

func (b Bounds) apply(spec *Spec, fill bool) error {
	if b.MaxTimeout > 0 && spec.Timeout > b.MaxTimeout {
		return Invalidf("timeout: %d seconds is more than %d, which %s.max_timeout allows this API key",
			int64(spec.Timeout/time.Second), int64(b.MaxTimeout/time.Second), b.Section)
	}
	given := ResourceLimits{}
	for key, value := range spec.Resources {
		given[key] = value
	}
	for _, key := range boundedResources {
		usual := b.Default[key]
		if usual == "" {
			usual = b.Max[key]
		}
		if !fill {
			usual = ""
		}
		switch {
		case given[key] == "" && usual != "":
			given[key] = usual
		case given[key] == "" && b.Total[key] != "":
			return Invalidf("resourceLimits.%s: is required of this API key, because %s.total_%[1]s bounds what its sandboxes have together", key, b.Section)
		case b.Max[key] != "" && amount(given, key) > amount(b.Max, key):
			return Invalidf("resourceLimits.%s: %.128q is more than %s, which %s.max_%[1]s allows this API key for one sandbox", key, given[key], b.Max[key], b.Section)
		}
	}
	if len(given) > 0 {
		spec.Resources = given
	}
	return nil
}

// CheckRenewal returns an Error of KindInvalid for an expiry that is further away than the key may ask for.
func (b Bounds) CheckRenewal(now, expiresAt time.Time) error {
	if b.MaxTimeout > 0 && expiresAt.Sub(now) > b.MaxTimeout {
		return Invalidf("expiresAt: must be at most %d seconds from now, which %s.max_timeout allows this API key", int64(b.MaxTimeout/time.Second), b.Section)
	}
	return nil
}

// checkTotal returns an Error of KindConflict when a sandbox does not fit beside those of the key that have not ended.
func (b Bounds) checkTotal(owner string, used, asked Limits) error {
	for _, key := range boundedResources {
		if b.Total[key] == "" {
			continue
		}
		if total := amount(b.Total, key); of(used, key)+of(asked, key) > total {
			return Conflictf("resourceLimits.%s: the sandboxes of API key %q that have not ended would have more than %s together, and %s.total_%[1]s is that; "+
				"ask for less, delete one, or wait until one expires", key, owner, b.Total[key], b.Section)
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
