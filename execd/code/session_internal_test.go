package code

import (
	"testing"
	"time"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

// TestAnInterruptedThrowawayCellEndsItsSession: without its cell nothing else would, as the session
// is no context that could be deleted.
func TestAnInterruptedThrowawayCellEndsItsSession(t *testing.T) {
	t.Parallel()
	s := newSession(nil, Context{ID: "s"}, nil, true)
	e := &Execution{id: "e", session: s, clock: time.Now, done: make(chan struct{}), finally: func() {}}
	e.log.Start(e.id, eventlog.Options{Limit: 1 << 20, Clock: time.Now})
	if err := s.enqueue(e); err != nil {
		t.Fatal(err)
	}
	if err := s.interrupt(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the execution", e.done)
	select {
	case <-s.ending:
	default:
		t.Error("the session waits for another cell, with its kernel")
	}
}
