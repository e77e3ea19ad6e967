package cluster

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// leaseInterval is the pause between two questions to the API server whether a sandbox still has its pod.
const leaseInterval = v1alpha1.ReusePause / 4

// leased is the log of a pod of a Pool, for as long as the pod is certainly the sandbox's. A pod that is restarted for another sandbox keeps the
// log of its task-executor, which the next sandbox writes into as well. What was read within ReusePause after the API server was asked, and
// answered that the sandbox has the pod, is this sandbox's; anything later waits for the next such answer. The view does not suffice: it may be
// behind by any time.
type leased struct {
	io.ReadCloser
	ctx  context.Context // of what is read
	stop func()
	done sync.WaitGroup

	mu      sync.Mutex
	until   time.Time
	over    bool          // the sandbox does not have the pod any more
	changed chan struct{} // closed when either changes
}

// lease returns the log of a pod that the sandbox had according to an answer to a question that was asked at a time. Its Read ends soon after the
// pod is taken from the sandbox. ctx is that of the log, and cancel ends it.
func (c *Cluster) lease(ctx context.Context, cancel context.CancelFunc, e *view.Entry, asked time.Time, log io.ReadCloser) io.ReadCloser {
	asking, stop := context.WithCancel(ctx)
	l := &leased{ReadCloser: log, ctx: ctx, stop: stop, until: asked.Add(v1alpha1.ReusePause), changed: make(chan struct{})}
	pod, _, _ := podOf(e)
	l.done.Go(func() {
		for clock.Sleep(asking, leaseInterval) {
			asked := time.Now()
			now, err := c.view.Fetch(asking, e.Sandbox.ID)
			var known *lifecycle.Error
			over := errors.As(err, &known) && known.Kind == lifecycle.KindNotFound
			if err == nil {
				has, _, _ := podOf(now)
				over = now.Batch.UID != e.Batch.UID || has != pod
			}
			if !over && err != nil {
				continue // what is read waits until the API server answers
			}
			left := l.renew(asked, over)
			if over {
				clock.Sleep(asking, left) // what the sandbox wrote last is on its way
				cancel()
				return
			}
		}
	})
	return l
}

// renew takes an answer, and returns for how long what is read is still the sandbox's.
func (l *leased) renew(asked time.Time, over bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if over {
		l.over = true
	} else {
		l.until = asked.Add(v1alpha1.ReusePause)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return time.Until(l.until)
}

// covers reports whether what was read at a time is the sandbox's. It waits for the answer that says so.
func (l *leased) covers(at time.Time) bool {
	for {
		l.mu.Lock()
		until, over, changed := l.until, l.over, l.changed
		l.mu.Unlock()
		if at.Before(until) || over {
			return at.Before(until)
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// Read implements io.Reader.
func (l *leased) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if n > 0 && !l.covers(time.Now()) {
		n, err = 0, l.ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over && n == 0 {
		return 0, io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (l *leased) Close() error {
	l.stop()
	l.done.Wait()
	return l.ReadCloser.Close()
}
