package code

import (
	"context"
	"sync"

	"sandbox.internal/runtime/kernel"
)

// spares keeps a kernel ready for each language that has been used without a context: such a cell gets a kernel that nobody has used,
// and need not wait for it to start. A language that was never asked for costs nothing.
type spares struct {
	manager *Manager

	mu      sync.Mutex
	ready   map[string]chan kernel.Kernel // by kernelspec; holds one
	running sync.WaitGroup
	stopped bool
}

func newSpares(m *Manager) *spares {
	return &spares{manager: m, ready: make(map[string]chan kernel.Kernel)}
}

// take returns a fresh kernel of the spec, and has the next one started.
func (s *spares) take(ctx context.Context, spec string) (kernel.Kernel, error) {
	s.mu.Lock()
	ready, known := s.ready[spec]
	if !known {
		ready = make(chan kernel.Kernel, 1)
		s.ready[spec] = ready
	}
	s.mu.Unlock()
	var k kernel.Kernel
	select {
	case k = <-ready:
		select {
		case <-k.Dead(): // it died while it waited
			s.manager.stopKernel(k)
			k = nil
		default:
		}
	default:
	}
	if k == nil {
		var err error
		if k, err = s.manager.startKernel(ctx, spec); err != nil {
			return nil, err
		}
	}
	s.refill(spec, ready)
	return k, nil
}

func (s *spares) refill(spec string, ready chan kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		k, err := s.manager.startKernel(s.manager.ctx, spec)
		if err != nil {
			return // the next cell finds out why
		}
		select {
		case ready <- k:
		default: // there is one already
			s.manager.stopKernel(k)
		}
	}()
}

// stop ends the spares. The manager's context has ended, so nothing is being started for long.
func (s *spares) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.running.Wait()
	for _, ready := range s.ready {
		select {
		case k := <-ready:
			s.manager.stopKernel(k)
		default:
		}
	}
}
