package host_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// TestRandomSleep sends requests to sandboxes that sleep soon, at random times and by random ways,
// while calls of the engine fail and streams end. A sandbox may be frozen at the moment in which a
// request comes, and is woken then. From there on it is not frozen until the work is done. Every
// wake ends with a sandbox that runs.
func TestRandomSleep(t *testing.T) {
	const sandboxes, workers, requests = 4, 3, 40
	m := newMachine(t).start()
	numbers := random.New(t)
	for _, call := range []string{callFreeze, callThaw, callInspect, callWatchTraffic} {
		m.engine.failBefore(call, func(context.Context, string) error {
			if numbers.IntN(20) == 0 {
				return fmt.Errorf("%w: connection reset", engine.ErrUnavailable)
			}
			return nil
		})
		m.engine.failAfter(call, func(context.Context, string) error {
			if call != callWatchTraffic && numbers.IntN(40) == 0 {
				return fmt.Errorf("%w: no answer", engine.ErrUnavailable)
			}
			return nil
		})
	}
	var group sync.WaitGroup
	for range sandboxes {
		id := m.createOf(sleepingSpec())
		m.awaitRuns(id, 1)
		for range workers {
			group.Go(func() {
				for range requests {
					wait.Within(time.Duration(numbers.IntN(150))*time.Millisecond, func() bool { return false })
					switch numbers.IntN(8) {
					case 0:
						if err := m.host.Wake(t.Context(), id); err != nil {
							t.Errorf("wake: %v", err)
						}
					case 1:
						m.engine.cutStreams(container(id))
					case 2:
						idle := lifecycle.MinIdle + time.Duration(numbers.IntN(30))*time.Millisecond
						if _, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{Idle: &idle}, 0); err != nil {
							t.Errorf("change the lifecycle: %v", err)
						}
					default:
						m.request(id, numbers.IntN(4))
					}
				}
			})
		}
	}
	group.Wait()
	for _, sandbox := range m.sandboxes() {
		m.awaitReason(sandbox.ID, lifecycle.StatePaused, lifecycle.ReasonIdle)
	}
}

// request is a request of a client to the sandbox: a packet, and work once execd has it.
func (m *machine) request(id string, steps int) {
	name, before, after := container(id), 0, 0
	frozen := func(to *int) { m.engine.changeRest(name, func(r *memoryRest) { *to = r.frozen }) }
	m.engine.packet(name)
	if !wait.Within(wait.Patience(), func() bool { return m.engine.begin(name) }) {
		m.t.Errorf("a request does not reach sandbox %s: %+v", id, m.get(id).Status)
		return
	}
	frozen(&before)
	for range steps {
		wait.Within(20*time.Millisecond, func() bool { return false })
	}
	if !wait.Within(wait.Patience(), func() bool { return m.engine.end(name) }) {
		m.t.Errorf("work does not end in sandbox %s: %+v", id, m.get(id).Status)
		return
	}
	if frozen(&after); after-before > 1 {
		m.t.Errorf("sandbox %s was frozen %d times while work was done in it", id, after-before)
	}
}
