package docker

import (
	"errors"
	"maps"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/limits"
)

// availableProcessors is what the engine says before the list of its processors, when it is asked
// for others.
const availableProcessors = ", available: "

// processors confines containers to processors. Shares are kept by the containers' names; those of
// containers of an earlier service are learnt by Inspect.
type processors struct {
	*limits.Processors

	mu    sync.Mutex
	names map[string]string // of containers with a share, by id
}

func newProcessors() *processors {
	return &processors{Processors: limits.NewProcessors(nil), names: map[string]string{}}
}

// confine has create make the container on processors that are chosen for it. When the engine has
// others than were supposed, it says which, and these are chosen from.
func (p *processors) confine(spec engine.ContainerSpec, create func(list string) (id string, err error)) (string, error) {
	for attempt := 1; ; attempt++ {
		list := limits.FormatList(p.Take(spec.Name, spec.Resources.NanoCPUs))
		id, err := create(list)
		if err == nil {
			if list != "" {
				p.mu.Lock()
				p.names[id] = spec.Name
				p.mu.Unlock()
			}
			return id, nil
		}
		p.forget(spec.Name)
		_, rest, found := strings.Cut(err.Error(), availableProcessors)
		if list == "" || !found || !errors.Is(err, engine.ErrInvalid) || attempt > 2 {
			return id, err
		}
		// Twice the engine gets the processors that it has named, and then none.
		numbers, known := limits.ParseList(strings.TrimSpace(rest))
		if !known || attempt == 2 {
			numbers = nil
		}
		p.Use(numbers)
	}
}

// adopt counts the processors of a container that the engine has described, or gives them back when
// it does not run any more.
func (p *processors) adopt(found container.InspectResponse, c engine.Container) {
	switch {
	case c.Status == engine.StatusExited || c.Status == engine.StatusRemoving:
		p.forget(c.Name)
	case found.HostConfig == nil || found.HostConfig.CpusetCpus == "" || p.Knows(c.Name):
	default:
		if numbers, ok := limits.ParseList(found.HostConfig.CpusetCpus); ok {
			p.Adopt(c.Name, numbers, found.HostConfig.NanoCPUs)
			p.mu.Lock()
			p.names[c.ID] = c.Name
			p.mu.Unlock()
		}
	}
}

// forget gives back what the container of the name or id has.
func (p *processors) forget(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := container
	if known, ok := p.names[container]; ok {
		name = known
	}
	maps.DeleteFunc(p.names, func(_, of string) bool { return of == name })
	p.Release(name)
}
