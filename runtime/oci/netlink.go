package oci

import (
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/netlinkmem"
)

// boundNetlink ends containers whose netlink sockets hold too much, until the Engine is closed.
func (e *Engine) boundNetlink() { netlinkmem.Watch(e.closing, e.endHolders) }

// endHolders kills every container whose netlink sockets hold too much. Of those that share a network it is the one that has joined.
func (e *Engine) endHolders() {
	for _, c := range e.networkUsers() {
		held, err := netlinkmem.Of(c.pid)
		if err != nil || !held.TooMuch() {
			continue // with an error it has ended
		}
		e.mu.Lock()
		c.container.hoarded = true
		e.mu.Unlock()
		e.log.Warn().Str("container", c.container.name).Int64("bytes", held.Bytes).Int("sockets", held.Sockets).
			Msg("the netlink sockets of the container hold memory of the host that no limit counts: it is ended")
		if err := e.kill(c.container); err != nil {
			e.log.Error().Err(err).Str("container", c.container.name).Msg("the container cannot be ended")
		}
	}
}

// networkUser is a container and the first of its processes.
type networkUser struct {
	container *container
	pid       int
}

// networkUsers returns a container for each network that is not the host's.
func (e *Engine) networkUsers() []networkUser {
	e.mu.Lock()
	defer e.mu.Unlock()
	joined := map[string]bool{} // by id and name
	for _, c := range e.byID {
		if c.status() == engine.StatusRunning {
			joined[c.record.Spec.Join] = true
		}
	}
	var found []networkUser
	for _, c := range e.byID {
		if c.status() != engine.StatusRunning || c.record.Spec.Network == engine.NetworkHost || joined[c.id] || joined[c.name] {
			continue
		}
		found = append(found, networkUser{c, c.record.Run.Process.PID})
	}
	return found
}
