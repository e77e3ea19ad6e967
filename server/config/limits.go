package config

import (
	"cmp"
	"regexp"
)

// Limits is the section [server.limits], and limits of one entry of [[server.keys]]: what an API
// key may ask for. A request for more is 400, or 409 for the sums. The administrators' keys have
// the same limits.
type Limits struct {
	// DefaultCPU is what a sandbox gets whose request has no resourceLimits.cpu, such as 500m.
	// Unset: max_cpu.
	DefaultCPU string `toml:"default_cpu"`
	// DefaultMemory is what a sandbox gets whose request has no resourceLimits.memory, such as
	// 512Mi. Unset: max_memory.
	DefaultMemory string `toml:"default_memory"`
	// MaxCPU is the most that one sandbox may have. Unset: no limit.
	MaxCPU string `toml:"max_cpu"`
	// MaxMemory is the most that one sandbox may have. Unset: no limit.
	MaxMemory string `toml:"max_memory"`
	// TotalCPU is the most that the sandboxes of one key that have not ended may have together;
	// without a default and a maximum each request must then ask for some. Unset: no limit.
	TotalCPU string `toml:"total_cpu"`
	// TotalMemory is the same for memory. Unset: no limit.
	TotalMemory string `toml:"total_memory"`
	// MaxTimeout is the longest timeout of a sandbox, and the furthest expiry of a renewal from its
	// request, 60 to 86400; 0 is 86400.
	MaxTimeout Seconds `toml:"max_timeout"`
}

// Over returns the limits with those of others where they have none.
func (l Limits) Over(others Limits) Limits {
	return Limits{
		DefaultCPU: cmp.Or(l.DefaultCPU, others.DefaultCPU), DefaultMemory: cmp.Or(l.DefaultMemory, others.DefaultMemory),
		MaxCPU: cmp.Or(l.MaxCPU, others.MaxCPU), MaxMemory: cmp.Or(l.MaxMemory, others.MaxMemory),
		TotalCPU: cmp.Or(l.TotalCPU, others.TotalCPU), TotalMemory: cmp.Or(l.TotalMemory, others.TotalMemory),
		MaxTimeout: cmp.Or(l.MaxTimeout, others.MaxTimeout),
	}
}

const cpuExample, memoryExample = "500m or 2", "512Mi or 1Gi"

// The forms of a request's resourceLimits.
var (
	cpuQuantity    = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?m?$`)
	memoryQuantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?([KMGT]i|[kMGT])$`)
)

// checkQuantity applies the rule of quantities, which need not be there.
func checkQuantity(p *problems, key, value string, form *regexp.Regexp, example string) {
	if value != "" && !form.MatchString(value) {
		p.add(key, "must be a quantity as in resourceLimits, such as %s (got %q)", example, value)
	}
}

func (l Limits) check(p *problems, section string) {
	for _, quantity := range []struct {
		key, value, example string
		form                *regexp.Regexp
	}{
		{"default_cpu", l.DefaultCPU, cpuExample, cpuQuantity}, {"max_cpu", l.MaxCPU, cpuExample, cpuQuantity},
		{"total_cpu", l.TotalCPU, cpuExample, cpuQuantity}, {"default_memory", l.DefaultMemory, memoryExample, memoryQuantity},
		{"max_memory", l.MaxMemory, memoryExample, memoryQuantity}, {"total_memory", l.TotalMemory, memoryExample, memoryQuantity},
	} {
		checkQuantity(p, section+"."+quantity.key, quantity.value, quantity.form, quantity.example)
	}
	if l.MaxTimeout != 0 && (l.MaxTimeout < 60 || l.MaxTimeout > 86400) {
		p.add(section+".max_timeout", "must be 0, for 86400, or from 60 to 86400 seconds (got %d)", int64(l.MaxTimeout))
	}
}
