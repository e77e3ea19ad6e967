package conformance

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	rules "sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// Watcher polls the state of a sandbox as fast as it can.
type Watcher struct {
	mu     sync.Mutex
	states []string // one after the other, repetitions left out
	stop   func()
}

// Watch begins to watch a sandbox. The end of the test ends it.
func (s *Service) Watch(t *testing.T, id string) *Watcher {
	stop, done := make(chan struct{}), make(chan struct{})
	w := &Watcher{stop: sync.OnceFunc(func() { close(stop); <-done })}
	t.Cleanup(w.stop)
	go func() {
		defer close(done)
		for {
			sandbox, err := Decode[lifecycle.Sandbox](s.Send(t, http.MethodGet, "/v1/sandboxes/"+id,
				""))
			if err != nil {
				t.Error(err)
				return
			}
			w.saw(sandbox.Status.State)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return w
}

func (w *Watcher) saw(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.states) == 0 || w.states[len(w.states)-1] != state {
		w.states = append(w.states, state)
	}
}

// Await waits until the state was seen: the test itself must not leave it before.
func (w *Watcher) Await(t *testing.T, state string) {
	t.Helper()
	wait.Until(t, state+" was seen", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.states, state)
	})
}

// CheckSequence holds states that were seen one after the other against the transitions table. A
// poll can miss states that the service leaves by itself, and no others.
func CheckSequence(t *testing.T, states []string) {
	t.Helper()
	for i := 1; i < len(states); i++ {
		if !reaches(rules.State(states[i-1]), rules.State(states[i])) {
			t.Errorf("%s → %s is not in the transitions table; seen: %s", states[i-1], states[i],
				strings.Join(states, " → "))
		}
	}
}

func reaches(from, to rules.State) bool {
	for _, row := range rules.Transitions() {
		if row.From == from &&
			(row.To == to || row.To.Transient() && row.To != from && reaches(row.To, to)) {
			return true
		}
	}
	return false
}
