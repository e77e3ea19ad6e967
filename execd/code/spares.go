package code

import (
	"context"
	"slices"
	"sync"
	"time"

	"sandbox.internal/runtime/kernel"
)

// spareTime is how long a spare kernel is kept after the last cell that took one.
const spareTime = 5 * time.Minute

// spares keeps a kernel ready for each language that has been used without a context: such a cell
// gets an unused kernel, and need not wait for it to start. A language that was never asked for
// costs nothing.
type spares struct {
	manager *Manager

	mu      sync.Mutex
	pools   map[string]*pool // by kernelspec
	running sync.WaitGroup
	stopped bool
}

// pool holds the spare kernels of one spec, and those who wait for one. There are not both.
type pool struct {
	ready    []kernel.Kernel
	waiting  []chan started
	starting int
	expire   *time.Timer // ends what is ready; every cell sets it back
}

// started is how the start of a kernel ended.
type started struct {
	kernel kernel.Kernel
	err    error
}

func newSpares(m *Manager) *spares {
	return &spares{manager: m, pools: make(map[string]*pool)}
}

// take returns a fresh kernel of the spec, and starts the next one. A caller that comes while that
// is starting waits for it: to start another beside it would delay both.
func (s *spares) take(ctx context.Context, spec string) (kernel.Kernel, error) {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	pool := s.pool(spec)
	pool.expire.Reset(s.manager.options.SpareTime)
	if k := s.takeReady(pool); k != nil {
		s.replenish(spec, pool)
		s.mu.Unlock()
		return k, nil
	}
	result := make(chan started, 1)
	pool.waiting = append(pool.waiting, result)
	if pool.starting < len(pool.waiting) {
		s.start(spec, pool)
	}
	s.mu.Unlock()

	select {
	case got := <-result:
		if got.err == nil {
			s.mu.Lock()
			s.replenish(spec, pool)
			s.mu.Unlock()
		}
		return got.kernel, got.err
	case <-ctx.Done():
		s.mu.Lock()
		pool.waiting = slices.DeleteFunc(pool.waiting, func(other chan started) bool { return other == result })
		s.mu.Unlock()
		select {
		case got := <-result: // it came at the same time
			s.put(pool, got)
		default:
		}
		return nil, ctx.Err()
	}
}

// pool returns the pool of a spec, with mu held.
func (s *spares) pool(spec string) *pool {
	if s.pools[spec] == nil {
		made := new(pool)
		made.expire = time.AfterFunc(s.manager.options.SpareTime, func() { s.expire(made) })
		s.pools[spec] = made
	}
	return s.pools[spec]
}

// takeReady takes a ready kernel from the pool, nil when there is none. Kernels that have ended
// meanwhile are cleaned up. mu is held.
func (s *spares) takeReady(pool *pool) kernel.Kernel {
	for len(pool.ready) > 0 {
		k := pool.ready[0]
		pool.ready = pool.ready[1:]
		select {
		case <-k.Done():
			s.running.Go(func() { s.manager.stopKernel(k) })
		default:
			return k
		}
	}
	return nil
}

// replenish has a spare kernel started unless there will be one, with mu held.
func (s *spares) replenish(spec string, pool *pool) {
	if len(pool.ready)+pool.starting <= len(pool.waiting) {
		s.start(spec, pool)
	}
}

// start starts a kernel in the background, with mu held. No request bounds it: the first cell to
// ask gets it.
func (s *spares) start(spec string, pool *pool) {
	if s.stopped {
		return
	}
	pool.starting++
	s.running.Go(func() {
		k, err := s.manager.startKernel(s.manager.ctx, spec, s.manager.options.Dir)
		s.mu.Lock()
		pool.starting--
		s.mu.Unlock()
		s.put(pool, started{k, err})
	})
}

// put gives a kernel, or why there is none, to the cell that waits longest, or puts the kernel into
// the pool. An error that no cell waits for is dropped: the next cell tries again.
func (s *spares) put(pool *pool, got started) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(pool.waiting) > 0:
		pool.waiting[0] <- got // it has room for one
		pool.waiting = pool.waiting[1:]
	case got.err != nil:
	case s.stopped:
		s.mu.Unlock()
		s.manager.stopKernel(got.kernel)
		s.mu.Lock()
	default:
		pool.ready = append(pool.ready, got.kernel)
	}
}

// expire ends the spares of a spec that has not been used for a while. One that is still starting
// is ended the next time.
func (s *spares) expire(pool *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.discard(pool)
	if pool.starting > 0 {
		pool.expire.Reset(s.manager.options.SpareTime)
	}
}

// discard ends the spares of a pool in the background, with mu held.
func (s *spares) discard(pool *pool) {
	for _, k := range pool.ready {
		s.running.Go(func() { s.manager.stopKernel(k) })
	}
	pool.ready = nil
}

// stop ends the spares. The manager's context has ended, so nothing is being started for long.
func (s *spares) stop() {
	s.mu.Lock()
	s.stopped = true
	for _, pool := range s.pools {
		pool.expire.Stop()
		s.discard(pool)
	}
	s.mu.Unlock()
	s.running.Wait()
}
