package oci

import (
	"sync/atomic"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// ends records the ends of containers, and frees what a container that has ended needs no more.
type ends struct {
	log        zerolog.Logger
	background *background.Group
	containers *containers.Registry
	cgroups    *cgroup.Tree
	disks      *disks
	processors *processors
	// network is nil until it is open. Before that ends are recorded only, and the recovery frees
	// their networks.
	network atomic.Pointer[network.Network]
}

// exited is called by the keeper, once per end.
func (e *ends) exited(id string, end keeper.End) {
	if c := e.containers.Exited(id, end); c != nil {
		e.record(c, end)
	}
}

// record records in memory that a container has ended; the keeper has done it on the disk.
func (e *ends) record(c *containers.Container, end keeper.End) {
	oom, record := e.diedOfMemory(c, end), c.Record()
	taken, ok := c.SetEnded(end, oom)
	if !ok {
		return
	}
	e.processors.Release(c.ID)
	e.background.Run(func() { e.disks.end(c, taken) })
	if n := e.network.Load(); n != nil && record.Run != nil && record.Run.Network != nil {
		e.background.Try(func() { e.detach(n, c) })
	}
}

// diedOfMemory reports whether the kernel killed the container's first process for its memory: it
// was killed, and the control group has counted such a kill. The count is final before the signal
// is sent.
func (e *ends) diedOfMemory(c *containers.Container, end keeper.End) bool {
	if containers.ExitCode(end) != containers.KilledExitCode {
		return false
	}
	kills, err := e.cgroups.Group(c.ID).OOMKills()
	if err != nil {
		e.log.Warn().Err(err).Str("container", c.Name).Msg("cannot read the oom_kill count of container")
	}
	return kills > 0
}

// detach closes the published ports of a container that has ended. The kernel removes its network
// by itself. A container that was started again meanwhile has other ones.
func (e *ends) detach(n *network.Network, c *containers.Container) {
	if c.Lock(e.background.Closing()) != nil {
		return
	}
	defer c.Unlock()
	if !c.HasEnded() {
		return
	}
	if err := detach(n, c); err != nil {
		e.log.Warn().Err(err).Str("container_id", c.ID).Msg("cannot release the network of container; retried at its removal")
	}
}
