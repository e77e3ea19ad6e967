package docker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/go-connections/nat"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/runtime/engine"
)

// inspectors is how many containers List asks for at the same time: enough to hide the way to the engine and back.
const inspectors = 8

// Inspect implements [engine.Engine]. It takes up to a second for a container with a memory limit that was killed just now.
func (e *Engine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	var found container.InspectResponse
	err := e.call(ctx, "inspect container "+id, forContainer, func(ctx context.Context) (err error) {
		found, err = e.api.ContainerInspect(ctx, id)
		return err
	})
	if err != nil {
		return engine.Container{}, err
	}
	c := fromInspect(found)
	if found.State != nil {
		c.OOMKilled = e.diedOfMemory(ctx, found)
	}
	return c, nil
}

// List implements [engine.Engine]. The engine's own list has neither exit codes nor start times, so each
// container is inspected; one that goes away meanwhile is left out.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	var summaries []container.Summary
	err := e.call(ctx, "list containers", forEngine, func(ctx context.Context) (err error) {
		summaries, err = e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: labelFilter(labels)})
		return err
	})
	if err != nil {
		return nil, err
	}
	found := make([]engine.Container, len(summaries))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(inspectors)
	for i, summary := range summaries {
		group.Go(func() (err error) {
			found[i], err = e.Inspect(ctx, summary.ID)
			if errors.Is(err, engine.ErrNotFound) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(c engine.Container) bool { return c.ID == "" }), nil
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
		Labels: found.Config.Labels,
		Ports:  map[int]int{},
	}
	if found.State != nil {
		c.Status = statusOf(found.State)
		c.ExitCode = found.State.ExitCode
		c.Error = found.State.Error
		// The engine writes year 1 for never, which parses to the zero time.
		if at, err := time.Parse(time.RFC3339Nano, found.State.StartedAt); err == nil {
			c.StartedAt = at
		}
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

func statusOf(state *container.State) engine.Status {
	switch {
	case state.Status == container.StateRemoving:
		return engine.StatusRemoving
	case state.Paused:
		return engine.StatusFrozen
	case state.Running:
		return engine.StatusRunning
	case state.Status == container.StateCreated:
		return engine.StatusCreated
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
