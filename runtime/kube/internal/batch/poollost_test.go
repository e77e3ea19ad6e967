package batch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// TestPoolPodsOnALostNode: the end of a batch with a Pool is recorded once its pods have ended, or
// their node has not said so for long.
func TestPoolPodsOnALostNode(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	for _, name := range []string{"stopped", "deleted"} {
		pod := warmPod(p.namespace, "warm-"+name)
		pod.Annotations = map[string]string{annotationPlay: "lost"}
		p.must(p.Create(t.Context(), pod))
		pools.give(p, name, pod.Name)
		b := p.batch(name, 1)
		b.Spec.Template, b.Spec.PoolRef = nil, "warm"
		b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
		p.must(p.Create(t.Context(), b))
		p.has(name, "running", running(1))
	}
	p.change("stopped", func(b *v1alpha1.BatchSandbox) {
		b.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
	})
	p.must(p.Delete(t.Context(),
		p.has("deleted", "there", func(*v1alpha1.BatchSandbox) bool { return true })))
	for _, name := range []string{"stopped", "deleted"} {
		p.eventually(func() error {
			if p.pod("warm-"+name).DeletionTimestamp == nil {
				return fmt.Errorf("the pod of %s is not being deleted", name)
			}
			return nil
		})
	}
	// Nothing more comes from the node. The controller looks at both again.
	again := func(label string) {
		before := p.looks.Load()
		for _, name := range []string{"stopped", "deleted"} {
			p.change(name, func(b *v1alpha1.BatchSandbox) {
				b.Labels = map[string]string{"looked-at": label}
			})
		}
		p.eventually(func() error {
			if p.looks.Load() < before+4 {
				return fmt.Errorf("the controller has not looked")
			}
			return nil
		})
	}
	again("first")
	b := p.has("stopped", "there", func(*v1alpha1.BatchSandbox) bool { return true })
	if a, err := b.Allocation(); b.Status.Phase != v1alpha1.PhaseStopping || err != nil ||
		len(a.Pods) != 1 || a.Pods[0] != "warm-stopped" {
		t.Errorf("while its pod may run: allocation %+v (%v), status %+v", a, err, b.Status)
	}
	p.has("deleted", "there", func(*v1alpha1.BatchSandbox) bool { return true })

	p.ahead.Store(int64(20 * time.Minute))
	again("second")
	b = p.has("stopped", "ended",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Phase.Finished() })
	if b.Status.Phase != v1alpha1.PhaseFailed ||
		!strings.Contains(b.Status.Message, "node played does not answer") ||
		history(b) != "Pending Running Stopping Failed" {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
	p.isGone("deleted")
	p.eventually(func() error { // its Pool must not wait for the record
		b := p.has("stopped", "there", func(*v1alpha1.BatchSandbox) bool { return true })
		if a, err := b.Allocation(); err != nil || strings.Join(a.Pods, "") != "" {
			return fmt.Errorf("the allocation is %+v (%v)", a, err)
		}
		return nil
	})
	for _, name := range []string{"stopped", "deleted"} {
		p.playAgain(name)
	}
}

// TestPoolPodsAreReset: the end of a batch whose Pool restarts pods is recorded once they are
// reset.
func TestPoolPodsAreReset(t *testing.T) {
	p := newPlace(t)
	retired := make(chan string, 100)
	pools := &heap{reset: make(map[string]bool),
		releasing: func(b *v1alpha1.BatchSandbox, _ []int) { retired <- b.Name }}
	p.control(pools, nil)
	for _, name := range []string{"stopped", "deleted"} {
		pools.stock(p, name, 1)
		b := p.batch(name, 1)
		b.Spec.Template, b.Spec.PoolRef = nil, "warm"
		b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
		p.must(p.Create(t.Context(), b))
		b = p.has(name, "running", running(1))
		if name == "deleted" {
			p.must(p.Delete(t.Context(), b))
		} else {
			p.change(name, func(b *v1alpha1.BatchSandbox) {
				b.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
			})
		}
		for range 2 { // in two steps of the controller
			select {
			case <-retired:
			case <-time.After(wait.Patience()):
				t.Fatalf("the pod of %s is not taken back", name)
			}
			p.change(name, func(b *v1alpha1.BatchSandbox) {
				b.Labels = map[string]string{"looked-at": b.ResourceVersion}
			})
		}
		b = p.has(name, "there", func(*v1alpha1.BatchSandbox) bool { return true })
		if a, err := b.Allocation(); err != nil || len(a.Pods) != 1 || a.Pods[0] == "" ||
			b.Status.Phase.Finished() {
			t.Errorf("%s: allocation %+v (%v), status %+v", name, a, err, b.Status)
		}
		pools.mu.Lock()
		pools.reset["warm-"+name+"-0"] = true
		pools.mu.Unlock()
		pools.enqueuer.Enqueue(p.namespace, name)
	}
	p.isGone("deleted")
	p.reaches("stopped", v1alpha1.PhaseTerminated)
	p.eventually(func() error {
		b := p.has("stopped", "there", func(*v1alpha1.BatchSandbox) bool { return true })
		if a, err := b.Allocation(); err != nil || strings.Join(a.Pods, "") != "" {
			return fmt.Errorf("the allocation is %+v (%v)", a, err)
		}
		return nil
	})
}

// playAgain brings the node of a pod of a Pool back.
func (p *place) playAgain(batch string) {
	p.Helper()
	p.eventually(func() error {
		pod := p.pod("warm-" + batch)
		pod.Annotations[annotationPlay] = ""
		return p.Update(p.Context(), pod)
	})
}
