package oci

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
)

// knownRuntimes are the runtimes that are looked for when none is configured, the quickest first.
var knownRuntimes = []string{"crun", "runc", "runsc"}

// runtimes has the OCI runtimes that were found on this host.
type runtimes struct {
	standard bundle.Runtime // of containers that name none

	digests fileDigests // of programs

	mu     sync.Mutex
	byName map[string]bundle.Runtime // by the name that they were asked for with
}

// findRuntimes finds the default runtime, by name or, when that is empty, the first known one, and
// those that must be there besides.
func findRuntimes(name string, more []string) (*runtimes, error) {
	r := &runtimes{byName: map[string]bundle.Runtime{}}
	candidates := knownRuntimes
	if name != "" {
		candidates = []string{name}
	}
	var errs []error
	for _, candidate := range candidates {
		found, err := r.get(candidate)
		if err == nil {
			r.standard = found
			break
		}
		errs = append(errs, err)
	}
	switch {
	case len(errs) < len(candidates):
	case name != "":
		return nil, errs[0]
	default:
		return nil, fmt.Errorf("no OCI runtime was found, install %s: %w", strings.Join(knownRuntimes, " or "), errors.Join(errs...))
	}
	for _, other := range more {
		if _, err := r.get(other); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// get returns the runtime of the name; empty means the default one. It runs the program once.
func (r *runtimes) get(name string) (bundle.Runtime, error) {
	if name == "" {
		return r.standard, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.byName[name]; ok {
		return known, nil
	}
	found, err := bundle.Find(name)
	if err != nil {
		return bundle.Runtime{}, fmt.Errorf("%w: runtime %q: %w", engine.ErrInvalid, name, err)
	}
	r.byName[name] = found
	return found, nil
}

// identity returns the name of a runtime, its version and the digest of its program: builds of the
// same version can differ, or have none.
func (r *runtimes) identity(runtime bundle.Runtime) (string, error) {
	digest, err := r.digests.of(runtime.Path)
	if err != nil {
		return "", fmt.Errorf("digest of the OCI runtime: %w", err)
	}
	return runtime.Name + " " + runtime.Version + " " + digest, nil
}

// all returns every runtime that was found, by the path of its program.
func (r *runtimes) all() map[string]bundle.Runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]bundle.Runtime{}
	for _, runtime := range r.byName {
		found[runtime.Path] = runtime
	}
	return found
}
