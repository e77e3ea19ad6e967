package code

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandbox.internal/runtime/kernel"
)

// InterruptPatience is how long a cell may go on after an interrupt, as the contract says. Some
// kernels cannot be interrupted; then the kernel is ended. Time in which the sandbox is frozen does
// not count.
const InterruptPatience = 5 * time.Second

// interruptInterval is how soon an interrupt is tried again that came before the kernel had the
// cell.
const interruptInterval = 20 * time.Millisecond

// session is a kernel and the cells that wait for it, in order. One goroutine executes.
type session struct {
	manager   *Manager
	info      Context
	kernel    kernel.Kernel
	throwaway bool // ends after its one cell

	// handing is held while a cell is handed to the kernel, and while an interrupt is: it must not
	// come to a later cell than it was meant for.
	handing sync.Mutex

	mu              sync.Mutex
	queue           []*Execution
	current         *Execution
	reason          string        // why the session ends, once it does
	uninterruptible bool          // it ends because the running cell could not be interrupted
	wake            chan struct{} // holds one token when there may be something to do
	ending          chan struct{} // closed by end
	done            chan struct{} // closed when the kernel is gone
}

func newSession(m *Manager, info Context, k kernel.Kernel, throwaway bool) *session {
	return &session{
		manager: m, info: info, kernel: k, throwaway: throwaway,
		wake: make(chan struct{}, 1), ending: make(chan struct{}), done: make(chan struct{}),
	}
}

// What waits in a context, which is not the cell that runs, is bounded: all of it is in memory.
const (
	maxQueuedCells = 1000
	maxQueuedBytes = 64 << 20 // of code
)

// enqueue adds a cell. It returns ErrNotFound when the session has ended meanwhile, and ErrFull.
func (s *session) enqueue(e *Execution) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" {
		return fmt.Errorf("context %q: %w", s.info.ID, ErrNotFound)
	}
	size := e.size()
	for _, queued := range s.queue {
		size += queued.size()
	}
	if len(s.queue) >= maxQueuedCells || len(s.queue) > 0 && size > maxQueuedBytes {
		return fmt.Errorf("context %q: %w: %d cells, or %d MiB of code, are the limit; try again when one has ended",
			s.info.ID, ErrFull, maxQueuedCells, maxQueuedBytes>>20)
	}
	s.queue = append(s.queue, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// isOver reports whether the session takes no more cells.
func (s *session) isOver() bool {
	select {
	case <-s.kernel.Done():
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason != ""
}

// run executes what is queued until the session ends, whoever ends it.
func (s *session) run() {
	defer close(s.done)
	defer s.close()
	for {
		e := s.next()
		if e == nil {
			select {
			case <-s.wake:
			case <-s.ending:
				return
			case <-s.kernel.Done():
				s.end("the kernel has ended")
				return
			}
			continue
		}
		restore := e.restore
		alive := s.execute(e)
		s.handing.Lock() // an interrupt that is on its way is the cell's
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		s.handing.Unlock()
		if alive && !s.throwaway {
			alive = s.setBack(restore)
		}
		if !alive || s.throwaway {
			s.end("the kernel is gone")
			return
		}
	}
}

func (s *session) next() *Execution {
	s.handing.Lock()
	defer s.handing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" || len(s.queue) == 0 {
		return nil
	}
	s.current, s.queue = s.queue[0], s.queue[1:]
	return s.current
}

// execute runs one cell to its end and reports whether the kernel can take another.
func (s *session) execute(e *Execution) (alive bool) {
	ctx, cancel := s.untilEnd()
	defer cancel()
	e.begin()
	before := s.manager.options.OOMKills.Mark()
	var reply kernel.Reply
	var err error
	if e.prepare != "" {
		reply, err = s.kernel.Prepare(ctx, e.prepare)
	}
	if err == nil && reply.Error == nil {
		reply, err = s.kernel.Execute(ctx, e.code, e.record)
	}
	switch {
	case err == nil:
		if reply.Error != nil && e.raised != nil {
			reply.Error = e.raised // what the cell showed has the traceback, whatever the reply says
		}
		e.finish(reply.Count, reply.Error)
		return true
	case ctx.Err() != nil:
		e.finish(0, s.ended())
	case errors.Is(err, kernel.ErrEnded):
		why := "the kernel has ended"
		if !errors.Is(err, kernel.ErrNotKilled) && s.manager.options.OOMKills.Claim(before) {
			e.oomKilled, why = true, "memory ran out (OOM_KILLED): the kernel was killed"
		}
		e.finish(0, &kernel.Error{Name: "KernelDied", Value: why + ", and the variables of this context are lost"})
	default:
		s.manager.options.Logger.Error().Err(err).Str("context_id", s.info.ID).Msg("cannot execute a cell")
		e.finish(0, &kernel.Error{Name: "KernelUnavailable", Value: err.Error()})
	}
	return false
}

// untilEnd returns a context that ends with the session and with the manager.
func (s *session) untilEnd() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(s.manager.ctx, cancel)
	go func() {
		select {
		case <-s.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { stop(); cancel() }
}

// setBack sets back the variables that only one cell had, and reports whether the kernel can take
// another. The cell has ended: its client does not wait for this, and no interrupt of it comes.
func (s *session) setBack(restore string) (alive bool) {
	if restore == "" {
		return true
	}
	ctx, cancel := s.untilEnd()
	defer cancel()
	reply, err := s.kernel.Prepare(ctx, restore)
	if err == nil && reply.Error != nil {
		s.manager.options.Logger.Warn().Str("context_id", s.info.ID).Str("error", reply.Error.Name).
			Msg("cannot set back the environment of a cell")
	}
	return err == nil
}

// end makes the session end; the first reason counts.
func (s *session) end(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == "" {
		s.reason = reason
		close(s.ending)
	}
}

// ended is the error of the cell that was running when the session ended.
func (s *session) ended() *kernel.Error {
	s.mu.Lock()
	uninterruptible := s.uninterruptible
	s.mu.Unlock()
	if uninterruptible {
		return &kernel.Error{Name: "KeyboardInterrupt", Value: s.why()}
	}
	return &kernel.Error{Name: "ContextEnded", Value: s.why()}
}

func (s *session) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == "" {
		return "the daemon is shutting down"
	}
	return s.reason
}

// close forgets the session, answers those who still wait, and ends the kernel.
func (s *session) close() {
	m := s.manager
	m.mu.Lock()
	if m.contexts[s.info.ID] == s { // no other has taken its place
		delete(m.contexts, s.info.ID)
	}
	m.mu.Unlock()
	s.mu.Lock()
	waiting := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, e := range waiting {
		e.begin()
		e.finish(0, &kernel.Error{Name: "ContextEnded", Value: s.why()})
	}
	m.stopKernel(s.kernel)
}

// wait returns when the kernel is gone, or ctx ends.
func (s *session) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// interrupt stops a cell, or whichever runs when e is nil; a kernel that goes on all the same is
// ended.
func (s *session) interrupt(ctx context.Context, e *Execution) error {
	s.handing.Lock()
	defer s.handing.Unlock()
	s.mu.Lock()
	running := s.current
	waiting := slices.Index(s.queue, e)
	if waiting >= 0 {
		s.queue = slices.Delete(s.queue, waiting, waiting+1)
	}
	s.mu.Unlock()
	switch {
	case waiting >= 0:
		e.begin()
		e.finish(0, &kernel.Error{Name: "KeyboardInterrupt", Value: "the cell was interrupted before it began"})
		if s.throwaway {
			s.end("its only cell was interrupted before it began")
		}
		return nil
	case running == nil, e != nil && running != e:
		return nil
	}
	// It is bounded by itself. Broken off because its client left, it could come to the next cell.
	ctx = context.WithoutCancel(ctx)
	reached, err := s.kernel.Interrupt(ctx)
	switch {
	case errors.Is(err, kernel.ErrEnded):
	case err != nil:
		return fmt.Errorf("%w: interrupt: %w", ErrUnavailable, err)
	case reached:
		go s.awaitInterrupted(running)
	default: // the kernel does not have the cell yet, or is just done with it
		time.AfterFunc(interruptInterval, func() {
			if err := s.interrupt(ctx, running); err != nil {
				s.manager.options.Logger.Error().Err(err).Str("context_id", s.info.ID).Msg("cannot interrupt a cell")
			}
		})
	}
	return nil
}

// awaitInterrupted ends the kernel when it does not react to an interrupt of a cell.
func (s *session) awaitInterrupted(running *Execution) {
	patience := kernel.NewPatience(InterruptPatience, s.manager.options.Frozen)
	defer patience.Stop()
	for {
		select {
		case <-running.done:
			return
		case <-s.done:
			return
		case <-patience.C:
			if !patience.Exhausted() {
				continue
			}
			s.mu.Lock()
			s.uninterruptible = s.reason == ""
			s.mu.Unlock()
			s.end("the kernel did not react to the interrupt and was ended; its variables are gone")
			return
		}
	}
}
