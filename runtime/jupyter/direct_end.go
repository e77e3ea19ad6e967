package jupyter

import (
	"context"
	"syscall"
	"time"
)

// acknowledgeTime is how long a kernel may take to acknowledge an interrupt.
const acknowledgeTime = time.Second

// Interrupt implements [kernel.Kernel].
func (k *directKernel) Interrupt(ctx context.Context) (running bool, err error) {
	q, err := k.awaitBegun(ctx)
	if q == nil || err != nil {
		return false, err
	}
	if k.spec.InterruptMode == interruptByMessage {
		return true, k.interruptByMessage(ctx)
	}
	k.process.signal(syscall.SIGINT)
	return true, nil
}

// interruptByMessage returns when the kernel has acknowledged the interrupt, as far as it does: a
// cell that is sent afterwards is not meant.
func (k *directKernel) interruptByMessage(ctx context.Context) error {
	m := interruptRequest(k.session)
	q := k.add(m)
	defer k.abandon(q)
	if err := k.queue(ctx, k.control, m); err != nil {
		return err
	}
	timer := time.NewTimer(acknowledgeTime)
	defer timer.Stop()
	for {
		select {
		case m := <-q.messages:
			if m.Channel == channelControl || m.executionState() == "idle" {
				return nil
			}
		case <-timer.C:
			return nil
		case <-k.gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop implements [kernel.Kernel]. It takes at most two seconds unless a reader is slow to take the
// last output, and it kills at once when ctx ends.
func (k *directKernel) Stop(ctx context.Context) error {
	grace := shutdownWait
	if k.current() != nil {
		grace = 0 // a busy kernel reads no messages
	}
	if closed(k.ended) || k.queue(ctx, k.control, shutdownRequest(k.session)) != nil ||
		!k.exits(ctx, grace) {
		k.process.signal(syscall.SIGTERM)
		if !k.exits(ctx, termWait) {
			k.process.signal(syscall.SIGKILL)
		}
	}
	select {
	case <-k.gone:
		return nil
	case <-ctx.Done():
		<-k.process.exited
		return ctx.Err()
	}
}

// exits reports whether the process ends in time.
func (k *directKernel) exits(ctx context.Context, in time.Duration) bool {
	timer := time.NewTimer(in)
	defer timer.Stop()
	select {
	case <-k.process.exited:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return closed(k.process.exited)
}
