package cli

import (
	"context"
	"sync"
)

// signals decides what an interrupt does.
type signals struct {
	leave context.CancelCauseFunc

	mu      sync.Mutex
	handler func() // what the next interrupt does; nil means to leave
	left    bool
}

// deliver takes one interrupt. It reports false when an earlier one has cancelled the command,
// which has not returned yet.
func (s *signals) deliver() bool {
	s.mu.Lock()
	handler := s.handler
	s.handler = nil
	again := s.left
	s.left = s.left || handler == nil
	s.mu.Unlock()
	switch {
	case handler != nil:
		handler()
	case again:
		return false
	default:
		s.leave(errInterrupted)
	}
	return true
}

// hangUp ends the command, also where an interrupt would end only what it runs: its terminal is
// gone. The next interrupt does not wait for that.
func (s *signals) hangUp() {
	s.mu.Lock()
	s.handler, s.left = nil, true
	s.mu.Unlock()
	s.leave(errInterrupted)
}

// onInterrupt makes the next interrupt call handler once; the one after that ends the command.
// The function that it returns takes the handler away.
func (s *signals) onInterrupt(handler func()) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = handler
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handler = nil
	}
}
