package pool_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// retired retires the only pod of a batch, and waits until a task-executor is asked to reset it.
func (i *instance) retired(t *testing.T, b *v1alpha1.BatchSandbox, asked <-chan struct{}) {
	t.Helper()
	eventually(t, func() string {
		return conflict(t, i.pools.Retire(t.Context(), get(t, b), []int{0}))
	})
	select {
	case <-asked:
	case <-time.After(wait.Patience()):
		t.Fatal("the pod is not reset")
	}
}

// conflict returns the text of an error after which another try helps.
func conflict(t *testing.T, err error) string {
	t.Helper()
	switch {
	case err == nil:
		return ""
	case !apierrors.IsConflict(err):
		t.Fatal(err)
	}
	return err.Error()
}

// TestRetire: a pod that is to be restarted is reset while its batch has it still, also when the
// controller is ended meanwhile, and given to another one only after it was written off.
func TestRetire(t *testing.T) {
	ns := namespace(t)
	asked, reset := make(chan struct{}, 100), make(chan struct{})
	dying := start(t, ns, pool.Options{Reset: executor(t,
		func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done() // no answer
		}), RecycleTimeout: time.Hour})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMin: 1, PoolMax: 1},
		restarting)
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := served(t, first, 1)
	second := makeBatch(t, ns, "second", 1)
	change(t, first, func() {
		first.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
	})
	dying.retired(t, first, asked)
	dying.kill()

	i := start(t, ns, pool.Options{Reset: executor(t,
		func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-reset:
				fmt.Fprint(w, "{}")
			case <-r.Context().Done():
			}
		}), RecycleTimeout: time.Hour})
	for len(asked) > 0 {
		wait.For(t, "a call that has come", asked)
	}
	i.retired(t, first, asked)
	if i.pools.Ended(podsIn(t, ns)[used[0]]) {
		t.Error("everything in the pod has ended, and its task-executor has not reset it")
	}
	i.keeper.mu.Lock()
	i.keeper.asked[first.Name] = false
	i.keeper.mu.Unlock()
	close(reset)
	eventually(t, func() string {
		i.keeper.mu.Lock()
		defer i.keeper.mu.Unlock()
		if !i.pools.Ended(podsIn(t, ns)[used[0]]) || !i.keeper.asked[first.Name] {
			return "the pod was reset, and its batch is not reconciled"
		}
		return ""
	})
	if err := report(t.Context(), podsIn(t, ns)[used[0]], 2); err != nil { // as the kubelet does
		t.Fatal(err)
	}
	if names := podsOf(t, first); !slices.Equal(names, used) || len(podsOf(t, second)) > 0 {
		t.Errorf("before the pod is written off, the batches have %q and %q", names, podsOf(t, second))
	}
	began := time.Now()
	eventually(t, func() string {
		return conflict(t, i.pools.Release(t.Context(), get(t, first), []int{0}))
	})
	if again := served(t, second, 1); !slices.Equal(again, used) {
		t.Errorf("the other batch has %q, and %q was restarted for it", again, used)
	}
	if after := time.Since(began); after < v1alpha1.ReusePause {
		t.Errorf("the pod was given %v after it was written off", after)
	}
}
