package oci

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cdi"
	"sandbox.internal/runtime/oci/internal/containers"
)

// gpus gives containers GPUs of this machine: each one to one container, from before it starts
// until its first process has ended.
type gpus struct {
	kind       string
	devices    *cdi.Devices // nil without a kind
	containers *containers.Registry
	mu         sync.Mutex // held from the choice until the records have it

	// What list found last, and when; guarded by mu.
	names      []string
	unreadable error
	listed     time.Time
}

func openGPUs(kind string, directories []string, all *containers.Registry) (*gpus, error) {
	g := &gpus{kind: kind, containers: all}
	if kind == "" {
		return g, nil
	}
	var err error
	g.devices, err = cdi.New(kind, directories)
	return g, err
}

// take chooses GPUs that no container has, [engine.AllGPUs] for every one of the machine, and calls
// record with their names. The error wraps [engine.ErrInvalid] when there are not so many.
func (g *gpus) take(count int, record func(names []string) error) error {
	if count == 0 {
		return record(nil)
	}
	if g.devices == nil {
		return fmt.Errorf("%w: GPUs: local.gpu_kind names none", engine.ErrInvalid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	names, unreadable := g.devices.List()
	if len(names) == 0 {
		return errors.Join(fmt.Errorf("%w: GPUs: this machine has no CDI specification of %s in %s", engine.ErrInvalid,
			g.kind, strings.Join(cdi.Directories, " or ")), unreadable)
	}
	wanted := count
	if count == engine.AllGPUs {
		wanted = len(names)
	}
	taken := g.taken()
	free := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return taken[name] })
	if len(free) < wanted {
		return fmt.Errorf("%w: GPUs: %d are asked for, and %d of %d are free", engine.ErrInvalid, wanted, len(free), len(names))
	}
	return record(free[:wanted])
}

// listedFor is how long a list of the machine's GPUs is given again: reading the specifications of
// a large machine takes milliseconds, and clients ask before each create.
const listedFor = 5 * time.Second

// list returns the kind and the names of the machine's GPUs, at most listedFor old.
func (g *gpus) list() (kind string, names []string, err error) {
	if g.devices == nil {
		return "", nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listed.IsZero() || time.Since(g.listed) > listedFor {
		g.names, g.unreadable = g.devices.List()
		g.listed = time.Now()
	}
	return g.kind, g.names, g.unreadable
}

// taken are the names of those that containers have.
func (g *gpus) taken() map[string]bool {
	taken := map[string]bool{}
	for _, c := range g.containers.All() {
		if run := c.Record().Run; run != nil && !c.HasEnded() {
			for _, name := range run.GPUs {
				taken[name] = true
			}
		}
	}
	return taken
}

// openDevices finds what the container needs to use its GPUs.
func (s *start) openDevices() (mounts []bundle.Mount, err error) {
	names := s.container.Record().Run.GPUs
	if len(names) == 0 {
		return nil, nil
	}
	s.devices, mounts, err = s.gpus.devices.Edits(names)
	if err != nil {
		return nil, fmt.Errorf("%w: GPUs: %w", engine.ErrInvalid, err)
	}
	return mounts, nil
}
