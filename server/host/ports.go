package host

import (
	"context"
	"errors"
	"time"

	"sandbox.internal/server/lifecycle"
)

// holdAgainPause is how long a sandbox on the disk stays without its published ports after they
// could not be had.
const holdAgainPause = time.Minute

// portsWake reports whether connections to the published ports of the sandbox wake it from the
// disk, where it is or is being brought to.
func (a *actor) portsWake() bool {
	onDisk := a.record.Stopped && a.record.Hibernation != "" || a.record.Hibernation == lifecycle.HibernationBegun
	return onDisk && a.record.Sandbox.Sleeps() && a.host.packetsWake(a.record.Sandbox.Settings())
}

// needsPorts reports whether connections to the published ports of the sandbox are to wake it, and
// do not yet.
func (a *actor) needsPorts() bool { return a.untilPorts() == 0 }

// untilPorts returns how long a sandbox whose published ports are to wake it, and do not yet, waits
// for that; an hour for any other.
func (a *actor) untilPorts() time.Duration {
	if a.sleep.ports != nil || !a.portsWake() {
		return time.Hour
	}
	return max(0, a.sleep.portsAgain.Sub(a.host.options.Clock()))
}

// updatePorts ends that connections to published ports wait, once the sandbox runs or nothing wakes
// it, and wakes it where one does. While it is being started, or is to be, they wait on.
func (a *actor) updatePorts() {
	ports := a.sleep.ports
	if ports == nil {
		return
	}
	stops := a.record.Stopped || a.record.Hibernation == lifecycle.HibernationBegun
	if starting := a.state() == lifecycle.StateResuming && stops; !starting && !a.portsWake() {
		ports.stop()
		a.sleep.ports = nil
		if !a.record.Sandbox.Sleeps() {
			return
		}
	}
	if a.record.Sandbox.Wakes() && a.record.Sandbox.Sleeps() && ports.seen.Swap(false) {
		a.sleep.woken = true
	}
}

// holdPorts is the job of a sandbox that is on the disk without its published ports, as after a
// restart.
func (a *actor) holdPorts(ctx context.Context, record lifecycle.Record) func() {
	held := a.holdConnections(ctx, record)
	return func() { a.setPorts(held) }
}

// holdPortsBefore does that for a sandbox whose processes are about to end.
func (a *actor) holdPortsBefore(ctx context.Context, record lifecycle.Record) {
	needed := false
	err := a.do(ctx, func() error { needed = a.needsPorts(); return nil })
	if err != nil || !needed {
		return
	}
	held := a.holdConnections(ctx, record)
	a.post(func() { a.setPorts(held) })
}

// setPorts takes over what has connections to published ports wait; nil where they cannot.
func (a *actor) setPorts(held *packetWatch) {
	a.sleep.ports = held
	if held == nil && a.host.packetsWake(a.record.Sandbox.Settings()) {
		a.sleep.portsAgain = a.host.options.Clock().Add(holdAgainPause)
	}
}

// holdConnections has connections to the published ports of the sandbox wait. It returns nil where
// they cannot, or would not wake it.
func (a *actor) holdConnections(ctx context.Context, record lifecycle.Record) *packetWatch {
	if !a.host.packetsWake(record.Sandbox.Settings()) {
		return nil
	}
	made := &packetWatch{}
	release, err := a.host.options.Boxes.HoldConnections(ctx, record, func() {
		made.seen.Store(true)
		a.reportPackets()
	})
	var refused *lifecycle.Error
	if err != nil {
		if ctx.Err() == nil && !errors.As(err, &refused) {
			a.log.Warn().Err(err).Msg("cannot listen at the published ports of a sandbox on the disk: connections to them do not wake it")
		}
		return nil
	}
	open, end := context.WithCancel(a.host.ctx)
	made.stop = func() { release(); end() }
	a.host.tasks.Go(func() {
		<-open.Done()
		release()
	})
	return made
}
