package bundle

import (
	"encoding/base64"
	"errors"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	profiles "sandbox.internal/runtime/internal/profile"
	compiler "sandbox.internal/runtime/oci/seccomp"
)

// unconfined as a profile of seccomp or AppArmor switches it off.
const unconfined = "unconfined"

// filter is a seccomp profile for a set of capabilities; without a profile there is none.
type filter struct {
	profile *specs.LinuxSeccomp
	// program is the profile, compiled, in base64; empty when the compiler does not support it.
	program string
}

// filters keeps what was compiled: it takes milliseconds, and services use one profile or two.
var filters filterCache

// maxFilters bounds the cache. It is emptied when it is full.
const maxFilters = 64

type filterCache struct {
	mutex sync.Mutex
	known map[string]filter
}

// get returns the filter for a profile as in [engine.Security].
func (c *filterCache) get(profile string, capabilities []string) (filter, error) {
	if profile == unconfined {
		return filter{}, nil
	}
	key := strings.Join(capabilities, " ") + "\n" + profile
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if found, ok := c.known[key]; ok {
		return found, nil
	}
	made, err := newFilter(profile, capabilities)
	if err != nil {
		return filter{}, invalid("seccomp profile", "%w", err)
	}
	if c.known == nil || len(c.known) >= maxFilters {
		c.known = map[string]filter{}
	}
	c.known[key] = made
	return made, nil
}

func newFilter(profile string, capabilities []string) (f filter, err error) {
	// Rules of profiles depend on the capabilities.
	container := &specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}}
	if profile == "" {
		var text string
		if text, err = profiles.JSON(); err == nil {
			f.profile, err = seccomp.LoadProfile(text, container)
		}
	} else {
		f.profile, err = seccomp.LoadProfile(profile, container)
	}
	if err != nil || f.profile == nil { // an empty profile is none
		return f, err
	}
	program, err := compiler.Compile(f.profile)
	if errors.Is(err, compiler.ErrUnsupported) { // then the runtime compiles it
		return f, nil
	}
	f.program = base64.StdEncoding.EncodeToString(program)
	return f, err
}
