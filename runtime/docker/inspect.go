package docker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/go-connections/nat"

	"sandbox.internal/runtime/engine"
)

// Inspect implements [engine.Engine]. It takes up to a second for a container with a memory limit
// that was killed just now.
func (e *Engine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	found, err := e.inspect(ctx, id)
	if err != nil {
		if errors.Is(err, engine.ErrNotFound) {
			e.processors.forget(id)
		}
		return engine.Container{}, err
	}
	c := e.asSeen(fromInspect(found))
	e.processors.adopt(found, c)
	if found.State != nil {
		c.OOMKilled = e.wasHoarding(found.ID) || e.diedOfMemory(ctx, found)
	}
	return c, nil
}

// List implements [engine.Engine]. It is one request, however many containers there are.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	var summaries []container.Summary
	err := e.call(ctx, "list containers", forEngine, func(ctx context.Context) (err error) {
		summaries, err = e.api.ContainerList(ctx,
			container.ListOptions{All: true, Filters: labelFilter(labels)})
		return err
	})
	if err != nil {
		return nil, err
	}
	found := make([]engine.Container, len(summaries))
	for i, summary := range summaries {
		found[i] = e.asSeen(fromSummary(summary))
	}
	settle(found, summaries)
	return found, nil
}

// asSeen returns a container as it is but for a snapshot, which nothing else sees.
func (e *Engine) asSeen(c engine.Container) engine.Container {
	if c.Status == engine.StatusFrozen && e.unseen.now(c.ID) {
		c.Status = engine.StatusRunning
	}
	return c
}

func fromSummary(summary container.Summary) engine.Container {
	c := engine.Container{
		ID:     summary.ID,
		Labels: callersLabels(summary.Labels),
		Status: statusOf(summary.State, summary.Labels),
		Ports:  map[int]int{},
	}
	for _, name := range summary.Names {
		if name := strings.TrimPrefix(name, "/"); !strings.Contains(name, "/") {
			// the others are links
			c.Name = name
		}
	}
	for _, port := range summary.Ports {
		// As in Inspect: IPv4 first, because the engine may choose another port for IPv6.
		if private := int(port.PrivatePort); port.Type == "tcp" && port.PublicPort != 0 &&
			(c.Ports[private] == 0 || !strings.Contains(port.IP, ":")) {
			c.Ports[private] = int(port.PublicPort)
		}
	}
	return c
}

// callersLabels returns the labels without those of this package.
func callersLabels(labels map[string]string) map[string]string {
	callers := maps.Clone(labels)
	maps.DeleteFunc(callers, func(name, _ string) bool { return strings.HasPrefix(name, ownPrefix) })
	return callers
}

func labelFilter(labels map[string]string) filters.Args {
	args := filters.NewArgs()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		args.Add("label", name+"="+labels[name])
	}
	return args
}

func fromInspect(found container.InspectResponse) engine.Container {
	c := engine.Container{
		ID:     found.ID,
		Name:   strings.TrimPrefix(found.Name, "/"),
		Labels: callersLabels(found.Config.Labels),
		Ports:  map[int]int{},
	}
	if found.State != nil {
		c.Status = statusOf(found.State.Status, found.Config.Labels)
		c.ExitCode = found.State.ExitCode
		c.Error = found.State.Error
	}
	if found.NetworkSettings != nil {
		for port, bindings := range found.NetworkSettings.Ports {
			if published := hostPort(bindings); port.Proto() == "tcp" && published != 0 {
				c.Ports[port.Int()] = published
			}
		}
	}
	return c
}

func statusOf(state container.ContainerState, labels map[string]string) engine.Status {
	switch state {
	case container.StatePaused:
		return engine.StatusFrozen
	case container.StateRunning, container.StateRestarting:
		return engine.StatusRunning
	case container.StateCreated:
		if labels[replacesLabel] != "" { // it was rolled back
			return engine.StatusStopped
		}
		return engine.StatusCreated
	case container.StateRemoving:
		return engine.StatusRemoving
	default: // exited or dead
		return engine.StatusExited
	}
}

// hostPort prefers IPv4: with every address published, the engine may choose another port for IPv6.
func hostPort(bindings []nat.PortBinding) int {
	chosen := 0
	for _, binding := range bindings {
		port, err := strconv.Atoi(binding.HostPort)
		if err != nil {
			continue
		}
		if address, err := netip.ParseAddr(binding.HostIP); err == nil && address.Is4() {
			return port
		}
		if chosen == 0 {
			chosen = port
		}
	}
	return chosen
}
