package jupyter

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/runtime/kernel"
)

// Stop implements [kernel.Kernel]. It returns ErrUnavailable when the server cannot be asked to
// remove the kernel.
func (k *serverKernel) Stop(ctx context.Context) error {
	select {
	case k.removing <- struct{}{}:
		defer func() { <-k.removing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	defer k.fail("it was stopped")
	if k.removed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if k.life.Err() == nil && k.running() {
		// A busy kernel does not see that it shall end, and would be waited for.
		_ = k.server.call(ctx, http.MethodPost, "api/kernels/"+k.id+"/interrupt", nil, nil)
	}
	if err := k.remove(ctx); err != nil {
		return fmt.Errorf("removing a kernel: %w", unavailable(err))
	}
	k.removed = true
	k.server.forget(k)
	return nil
}

// remove takes the kernel from the server, which fails at that while it is starting the kernel
// again: so it is asked again, too.
func (k *serverKernel) remove(ctx context.Context) error {
	for {
		err := k.server.call(ctx, http.MethodDelete, "api/kernels/"+k.id, nil, nil)
		switch {
		case err == nil, isStatus(err, http.StatusNotFound):
			return nil
		case !isStatus(err, http.StatusInternalServerError):
			return err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return err
		}
	}
}

// running reports whether a cell has begun and not ended.
func (k *serverKernel) running() bool {
	q := k.current()
	return q != nil && closed(q.begun)
}

// discard removes the kernel from the server as far as that is possible: a kernel that is lost to
// us shall not stay.
func (k *serverKernel) discard(why error) {
	if err := k.Stop(context.Background()); err != nil {
		k.server.log.Warn().Err(err).AnErr("why", why).Str("kernel",
			k.id).Msg("a lost kernel may have been left on the Jupyter Server")
	}
}

// fail marks the kernel as ended, for the first reason that is given, and returns that.
func (k *serverKernel) fail(format string, args ...any) error {
	k.end(fmt.Errorf("%w: %w", kernel.ErrEnded, fmt.Errorf(format, args...)))
	return context.Cause(k.life)
}
