package jupyter

import (
	"context"
	"syscall"
	"time"

	"sandbox.internal/runtime/kernel"
)

// silenceWait is how long the output of a cell may be silent, after its reply, before its end is taken for lost.
const silenceWait = 10 * time.Second

// Execute implements [kernel.Kernel].
func (k *directKernel) Execute(ctx context.Context, code string, handle func(kernel.Output)) (kernel.Reply, error) {
	switch {
	case closed(k.dead):
		return kernel.Reply{}, k.deathError()
	case ctx.Err() != nil:
		return kernel.Reply{}, ctx.Err()
	}
	m := executeRequest(k.session, code)
	cell := newCell(m, handle)
	q := k.add(m)
	if err := k.send(ctx, k.shell, m); err != nil {
		k.abandon(q)
		return kernel.Reply{}, err
	}
	defer k.leave(q)
	var missing <-chan time.Time
	silence := time.NewTimer(silenceWait)
	defer silence.Stop()
	for {
		select {
		case m := <-q.messages:
			if cell.take(m) {
				return cell.reply, nil
			}
			silence.Reset(silenceWait)
			if cell.idle && missing == nil {
				missing = time.After(replyTime)
			}
		case <-missing:
			// ipykernel forgets to reply when an interrupt meets it on the way into the cell or out of it.
			return kernel.Reply{Error: &kernel.Error{Name: "KeyboardInterrupt", Value: "the kernel gave the cell up without a reply"}}, nil
		case <-silence.C:
			if cell.replied && !cell.idle && len(q.messages) == 0 {
				// The kernel dropped what it published. To wait on would hang, and to call it complete would be wrong.
				cell.reply.Error = &kernel.Error{Name: "OutputLost", Value: "the kernel replied, but the end of its output was lost"}
				return cell.reply, nil
			}
			silence.Reset(silenceWait)
		case <-ctx.Done():
			return kernel.Reply{}, ctx.Err()
		case <-k.gone:
			return k.rest(cell, q)
		}
	}
}

// rest takes the messages that a kernel had sent before it ended.
func (k *directKernel) rest(cell *cell, q *request) (kernel.Reply, error) {
	for {
		select {
		case m := <-q.messages:
			if cell.take(m) {
				return cell.reply, nil
			}
		default:
			return kernel.Reply{}, k.deathError()
		}
	}
}

// Interrupt implements [kernel.Kernel].
func (k *directKernel) Interrupt(ctx context.Context) error {
	if closed(k.dead) {
		return k.deathError()
	}
	q := k.current()
	if q == nil {
		return nil
	}
	// ipykernel ignores signals until the cell has begun.
	timer := time.NewTimer(beginTime)
	defer timer.Stop()
	select {
	case <-q.begun:
	case <-timer.C:
	case <-q.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-k.dead:
		return k.deathError()
	}
	if closed(q.idle) {
		return nil
	}
	if k.spec.InterruptMode == interruptByMessage {
		return k.send(ctx, k.control, interruptRequest(k.session))
	}
	k.process.signal(syscall.SIGINT)
	return nil
}

// Dead implements [kernel.Kernel].
func (k *directKernel) Dead() <-chan struct{} { return k.dead }

// Stop implements [kernel.Kernel]. It takes at most two seconds unless somebody is slow to take the last output, and it kills at
// once when ctx ends.
func (k *directKernel) Stop(ctx context.Context) error {
	grace := shutdownWait
	if k.current() != nil {
		grace = 0 // a busy kernel hears nothing
	}
	if closed(k.dead) || k.send(ctx, k.control, shutdownRequest(k.session)) != nil || !k.exits(ctx, grace) {
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
