package oci

import (
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/netlinkmem"
	"sandbox.internal/runtime/oci/internal/containers"
)

// boundNetlink ends containers whose netlink sockets hold too much, until the Engine is closed.
func (e *Engine) boundNetlink() { netlinkmem.Watch(e.background.Closing(), e.endHolders) }

// endHolders kills every container whose netlink sockets hold too much. Of those that share a
// network it is the one that has joined.
func (e *Engine) endHolders() {
	for _, c := range networkUsers(e.containers.All()) {
		held, err := netlinkmem.Of(c.Record().Run.Process.PID)
		if err != nil || !held.TooMuch() {
			continue // with an error it has ended
		}
		c.SetOverNetlink()
		e.log.Warn().Str("container", c.Name).Int64("bytes", held.Bytes).Int("sockets", held.Sockets).
			Msg("container killed: its netlink sockets hold memory of the host that no limit counts")
		if err := e.processes.kill(c); err != nil {
			e.log.Error().Err(err).Str("container", c.Name).Msg("cannot kill container")
		}
	}
}

// networkUsers returns a container that runs for each network that is not the host's. One whose
// network another container has joined is none as long as that has not ended: what is being
// started, or frozen, may have made the sockets.
func networkUsers(all []*containers.Container) []*containers.Container {
	specs := map[*containers.Container]engine.ContainerSpec{}
	joined := map[string]bool{} // by id and name
	for _, c := range all {
		status := c.Status()
		if status == engine.StatusExited || status == engine.StatusRemoving {
			continue
		}
		spec := c.Record().Spec
		joined[spec.Join] = true
		if status == engine.StatusRunning {
			specs[c] = spec
		}
	}
	var found []*containers.Container
	for c, spec := range specs {
		if spec.Network != engine.NetworkHost && !joined[c.ID] && !joined[c.Name] {
			found = append(found, c)
		}
	}
	return found
}
