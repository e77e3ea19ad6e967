package docker

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"sandbox.internal/runtime/internal/netlinkmem"
)

// endedFor is how long it is known of a container that it was ended for what its sockets held.
const endedFor = time.Hour

// boundNetlink ends containers with the labels whose netlink sockets hold too much, until ctx ends.
func (e *Engine) boundNetlink(ctx context.Context, labels map[string]string) {
	pids := map[string]int{} // of first processes, by container
	netlinkmem.Watch(ctx, func() { e.endHolders(ctx, labels, pids) })
}

// endHolders kills every container whose netlink sockets hold too much. Of those that share a
// network it is the one that has joined, and none while that is being started or is paused. While
// the engine does not answer, nothing is done.
func (e *Engine) endHolders(ctx context.Context, labels map[string]string, pids map[string]int) {
	var listed []container.Summary
	filter := labelFilter(labels)
	for _, state := range []string{container.StateRunning, container.StateCreated, container.StatePaused} {
		filter.Add("status", state)
	}
	err := e.call(ctx, "list running containers", forEngine, func(ctx context.Context) (err error) {
		listed, err = e.api.ContainerList(ctx, container.ListOptions{Filters: filter})
		return err
	})
	if err != nil {
		return
	}
	joined := map[string]bool{}
	alive := map[string]bool{}
	for _, c := range listed {
		if id, joins := strings.CutPrefix(c.HostConfig.NetworkMode, "container:"); joins {
			joined[id] = true
		}
		alive[c.ID] = c.State == container.StateRunning
	}
	for id := range pids {
		if !alive[id] {
			delete(pids, id)
		}
	}
	for _, c := range listed {
		if !alive[c.ID] || joined[c.ID] || c.HostConfig.NetworkMode == "host" {
			continue
		}
		pid := e.firstProcess(ctx, c.ID, pids)
		if pid == 0 {
			continue
		}
		if held, err := netlinkmem.Of(pid); err == nil && held.TooMuch() && isOf(pid, c.ID) {
			e.endHolder(ctx, c.ID, held)
		}
	}
}

func (e *Engine) endHolder(ctx context.Context, id string, held netlinkmem.Held) {
	e.log.Warn().Str("container", id).Int64("bytes", held.Bytes).Int("sockets", held.Sockets).
		Msg("the netlink sockets of the container hold memory of the host that no limit counts: it is ended")
	e.hoardedMu.Lock()
	for other, at := range e.hoarded {
		if time.Since(at) > endedFor {
			delete(e.hoarded, other)
		}
	}
	e.hoarded[id] = time.Now()
	e.hoardedMu.Unlock()
	err := e.call(ctx, "kill container "+id, forContainer, func(ctx context.Context) error {
		return e.api.ContainerKill(ctx, id, "KILL")
	})
	if err != nil {
		e.log.Error().Err(err).Str("container", id).Msg("the container cannot be ended")
	}
}

// firstProcess returns the process id of the first process of a container, 0 when it is not known.
// The engine is asked once for each that runs, so that a process which sees none of them does not
// ask for all of them again and again.
func (e *Engine) firstProcess(ctx context.Context, id string, pids map[string]int) int {
	if pid, asked := pids[id]; asked && (pid == 0 || isOf(pid, id)) {
		return pid
	}
	var found container.InspectResponse
	err := e.call(ctx, "inspect container "+id, forContainer, func(ctx context.Context) (err error) {
		found, err = e.api.ContainerInspect(ctx, id)
		return err
	})
	if err != nil || found.State == nil {
		return 0
	}
	pids[id] = 0
	if isOf(found.State.Pid, id) {
		pids[id] = found.State.Pid
	}
	return pids[id]
}

// isOf reports whether a process is one of the container: the number may be another's by now, or be
// of another process where this one runs in a container itself.
func isOf(pid int, id string) bool {
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && strings.Contains(string(groups), id)
}

// wasHoarding reports whether a container was ended for what its netlink sockets held.
func (e *Engine) wasHoarding(id string) bool {
	e.hoardedMu.Lock()
	defer e.hoardedMu.Unlock()
	_, was := e.hoarded[id]
	return was
}
