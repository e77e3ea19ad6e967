package e2e_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// storm is what a crashed service was asked to do, and what it answered.
type storm struct {
	mu       sync.Mutex
	accepted []string        // answered 202
	deleting map[string]bool // asked to be deleted; true: answered 204
}

// TestCrash kills the service at random moments while sandboxes are created and deleted, and starts
// it again on the same records. Every accepted sandbox must be usable, or ended by its delete, and
// none Failed: the engine had no fault. No container may be without a record.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true})
	random := random.New(t)
	all := &storm{deleting: map[string]bool{}}
	// With the first limit the kill hits creates that are being accepted, the others the work that
	// goes on behind.
	for _, limit := range []time.Duration{30 * time.Millisecond, time.Second, 4 * time.Second} {
		after := time.Duration(random.Int64N(int64(limit)))
		victims := all.victims(random, 10)
		var requests sync.WaitGroup
		for range 20 {
			requests.Go(func() { all.create(t, &s.Client) })
		}
		for _, id := range victims {
			requests.Go(func() { all.delete(t, &s.Client, id) })
		}
		time.Sleep(after) // the moment of the crash, not a wait for something
		s.Kill()
		requests.Wait()
		s.Boot(t)
	}
	if len(all.accepted) == 0 {
		t.Fatal("no create was accepted: this proves nothing")
	}
	t.Logf("%d accepted, %d asked to be deleted", len(all.accepted), len(all.deleting))
	all.check(t, s)
	checkNoContainerWithoutRecord(t, s)

	s.DeleteAll(t)
	for _, sandbox := range s.Everything(t) {
		if !conformance.Final(s.Get(t, sandbox.ID).Status.State) {
			s.Await(t, sandbox.ID, "Terminated")
		}
	}
}

func (w *storm) create(t *testing.T, c *conformance.Client) {
	answer, err := c.Try(http.MethodPost, "/v1/sandboxes", conformance.Encode(t, idle()))
	if err != nil {
		return // killed before it answered: nothing was promised
	}
	created, err := conformance.Decode[lifecycle.CreatedSandbox](answer)
	if err != nil {
		t.Errorf("create: %v", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accepted = append(w.accepted, created.ID)
}

func (w *storm) delete(t *testing.T, c *conformance.Client, id string) {
	answer, err := c.Try(http.MethodDelete, "/v1/sandboxes/"+id, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleting[id] = err == nil
	if err == nil && answer.Status != http.StatusNoContent {
		t.Errorf("delete %s: %s", id, answer)
	}
}

// victims picks sandboxes that no client has deleted yet.
func (w *storm) victims(random *rand.Rand, count int) []string {
	var picked []string
	for _, i := range random.Perm(len(w.accepted)) {
		id := w.accepted[i]
		if _, asked := w.deleting[id]; !asked && len(picked) < count {
			picked = append(picked, id)
		}
	}
	return picked
}

// check follows every accepted sandbox until it has settled.
func (w *storm) check(t *testing.T, s *service) {
	for _, id := range w.accepted {
		answered, asked := w.deleting[id]
		if answered {
			if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
				t.Errorf("%s was deleted, its reason is %s", id, got.Reason)
			}
			continue
		}
		status := s.Settled(t, id)
		switch {
		case status.State == "Running":
			s.Enter(t, id).Want(t, "echo usable", "usable\n")
		case status.State == "Terminated" && asked:
		default:
			t.Errorf("%s is %s (%s: %s)", id, status.State, status.Reason, status.Message)
		}
	}
}

func checkNoContainerWithoutRecord(t *testing.T, s *service) {
	t.Helper()
	for _, sandbox := range s.Everything(t) { // those whose create was not answered too
		s.Settled(t, sandbox.ID)
	}
	wait.Until(t, "every container belongs to a sandbox that lives", func() bool {
		running := map[string]bool{}
		for _, sandbox := range s.Everything(t) {
			running[sandbox.ID] = !conformance.Final(sandbox.Status.State)
		}
		for _, container := range s.containers(t) {
			if !running[container.Labels["sandbox.internal/id"]] {
				return false
			}
		}
		return true
	})
}
