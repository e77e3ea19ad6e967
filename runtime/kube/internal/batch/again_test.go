package batch_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// TestWantedAgain: numbers of a batch with a Pool are not wanted, and are wanted again while their
// pods are given back: after these are deleted, and before the allocation is written without them.
// The sandboxes have not failed by that, and get other pods.
func TestWantedAgain(t *testing.T) {
	p := newPlace(t)
	p.pooled(5, 3)
	p.has("b", "running", running(3))
	allocated := func(want ...string) func(b *v1alpha1.BatchSandbox) bool {
		return func(b *v1alpha1.BatchSandbox) bool {
			a, err := b.Allocation()
			return err == nil && strings.Join(a.Pods, " ") == strings.Join(want, " ") &&
				b.Status.Outcomes == "" && running(3)(b)
		}
	}
	// scale lowers the number of replicas to 2, and raises it when the allocation is written.
	scale := func() {
		t.Helper()
		written, raised := make(chan struct{}), make(chan struct{})
		hold := sync.OnceFunc(func() {
			close(written)
			<-raised
		})
		before := func(r *http.Request) {
			if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/batchsandboxes/b") {
				return
			}
			b := new(v1alpha1.BatchSandbox)
			if err := p.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: "b"},
				b); err == nil && b.Spec.Replicas == 2 && b.Status.ObservedGeneration == b.Generation {
				hold()
			}
		}
		p.before.Store(&before)
		defer p.before.Store(nil)
		defer close(raised)
		p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
		select {
		case <-written:
		case <-time.After(wait.Patience()):
			t.Fatal("the allocation is not written")
		}
		p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 3 })
	}
	scale()
	p.has("b", "whole again", allocated("warm-b-0", "warm-b-1", "warm-b-3"))

	// The same with one that has ended, so that its pod is given back already.
	p.eventually(func() error {
		pod := p.pod("warm-b-3")
		pod.Status.Phase, pod.Status.Conditions = corev1.PodFailed, nil
		return p.Status().Update(t.Context(), pod)
	})
	p.has("b", "without the pod that has ended", func(b *v1alpha1.BatchSandbox) bool {
		a, err := b.Allocation()
		return err == nil && b.Status.Outcomes == "--F" && len(a.Pods) == 3 && a.Pods[2] == ""
	})
	scale()
	p.has("b", "whole again", allocated("warm-b-0", "warm-b-1", "warm-b-4"))
}

// TestWantedAgainAfterAnEnd: a number that had ended is not wanted, and is wanted again while its
// pod is still being deleted. How that ended says nothing of the new sandbox.
func TestWantedAgainAfterAnEnd(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("b", 2)
	b.Spec.Template.Finalizers = []string{"example.com/hold"} // keeps pods that are being deleted
	p.must(p.Create(t.Context(), b))
	p.has("b", "running", running(2))
	p.eventually(func() error {
		pod := p.pod("b-1")
		pod.Status.Phase, pod.Status.Conditions = corev1.PodFailed, nil
		return p.Status().Update(t.Context(), pod)
	})
	p.has("b", "degraded",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Outcomes == "-F" })
	first := p.pod("b-1").UID
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 1 })
	p.eventually(func() error {
		if p.pod("b-1").DeletionTimestamp == nil {
			return fmt.Errorf("the pod that is not wanted is not deleted")
		}
		return nil
	})
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
	p.has("b", "waiting", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.ObservedGeneration == b.Generation && b.Status.Ready == 1
	})
	p.let("b-1")
	p.anotherPod("b-1", first)
	if b := p.has("b", "whole again", running(2)); b.Status.Outcomes != "" {
		t.Errorf("%+v", b.Status)
	}
}

// let removes the finalizers of a pod.
func (p *place) let(name string) {
	p.Helper()
	pod := p.pod(name)
	base := pod.DeepCopy()
	pod.Finalizers = nil
	p.must(p.Patch(p.Context(), pod, client.MergeFrom(base)))
}
