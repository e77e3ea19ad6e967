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

// spares keeps a kernel ready for each language that has been used without a context: such a cell gets an unused kernel,
// and need not wait for it to start. A language that was never asked for costs nothing.
type spares struct {
	manager *Manager

	mu      sync.Mutex
	shelves map[string]*shelf // by kernelspec
	running sync.WaitGroup
	stopped bool
}

// shelf holds the spare kernels of one spec, and those who wait for one. There are not both.
type shelf struct {
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
	return &spares{manager: m, shelves: make(map[string]*shelf)}
}

// take returns a fresh kernel of the spec, and has the next one started. Who comes while that is starting waits for it: to start
// another beside it would delay both.
func (s *spares) take(ctx context.Context, spec string) (kernel.Kernel, error) {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	shelf := s.shelf(spec)
	shelf.expire.Reset(s.manager.options.SpareTime)
	if k := s.living(shelf); k != nil {
		s.restock(spec, shelf)
		s.mu.Unlock()
		return k, nil
	}
	turn := make(chan started, 1)
	shelf.waiting = append(shelf.waiting, turn)
	if shelf.starting < len(shelf.waiting) {
		s.start(spec, shelf)
	}
	s.mu.Unlock()

	select {
	case got := <-turn:
		if got.err == nil {
			s.mu.Lock()
			s.restock(spec, shelf)
			s.mu.Unlock()
		}
		return got.kernel, got.err
	case <-ctx.Done():
		s.mu.Lock()
		shelf.waiting = slices.DeleteFunc(shelf.waiting, func(other chan started) bool { return other == turn })
		s.mu.Unlock()
		select {
		case got := <-turn: // it came at the same time
			s.put(shelf, got)
		default:
		}
		return nil, ctx.Err()
	}
}

// shelf returns the shelf of a spec, with mu held.
func (s *spares) shelf(spec string) *shelf {
	if s.shelves[spec] == nil {
		made := new(shelf)
		made.expire = time.AfterFunc(s.manager.options.SpareTime, func() { s.expire(made) })
		s.shelves[spec] = made
	}
	return s.shelves[spec]
}

// living takes a kernel off the shelf, nil when there is none; what died while it waited is cleaned up. mu is held.
func (s *spares) living(shelf *shelf) kernel.Kernel {
	for len(shelf.ready) > 0 {
		k := shelf.ready[0]
		shelf.ready = shelf.ready[1:]
		select {
		case <-k.Dead():
			s.running.Go(func() { s.manager.stopKernel(k) })
		default:
			return k
		}
	}
	return nil
}

// restock has a spare kernel started unless there will be one, with mu held.
func (s *spares) restock(spec string, shelf *shelf) {
	if len(shelf.ready)+shelf.starting <= len(shelf.waiting) {
		s.start(spec, shelf)
	}
}

// start starts a kernel in the background, with mu held. No request bounds it: the first cell to ask gets it.
func (s *spares) start(spec string, shelf *shelf) {
	if s.stopped {
		return
	}
	shelf.starting++
	s.running.Go(func() {
		k, err := s.manager.startKernel(s.manager.ctx, spec)
		s.mu.Lock()
		shelf.starting--
		s.mu.Unlock()
		s.put(shelf, started{k, err})
	})
}

// put gives a kernel, or why there is none, to the cell that waits longest, or puts the kernel on the shelf. An error that no
// cell waits for is dropped: the next cell tries again.
func (s *spares) put(shelf *shelf, got started) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(shelf.waiting) > 0:
		shelf.waiting[0] <- got // it has room for one
		shelf.waiting = shelf.waiting[1:]
	case got.err != nil:
	case s.stopped:
		s.mu.Unlock()
		s.manager.stopKernel(got.kernel)
		s.mu.Lock()
	default:
		shelf.ready = append(shelf.ready, got.kernel)
	}
}

// expire ends the spares of a spec that has not been used for a while. One that is still starting is ended the next time.
func (s *spares) expire(shelf *shelf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.discard(shelf)
	if shelf.starting > 0 {
		shelf.expire.Reset(s.manager.options.SpareTime)
	}
}

// discard ends the spares of a shelf in the background, with mu held.
func (s *spares) discard(shelf *shelf) {
	for _, k := range shelf.ready {
		s.running.Go(func() { s.manager.stopKernel(k) })
	}
	shelf.ready = nil
}

// stop ends the spares. The manager's context has ended, so nothing is being started for long.
func (s *spares) stop() {
	s.mu.Lock()
	s.stopped = true
	for _, shelf := range s.shelves {
		shelf.expire.Stop()
		s.discard(shelf)
	}
	s.mu.Unlock()
	s.running.Wait()
}
