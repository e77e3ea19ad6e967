package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestUpdate: a changed template replaces the pods that wait, and none that is allocated.
func TestUpdate(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{})
	one := intstr.FromInt32(1)
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 3, PoolMax: 5},
		func(p *v1alpha1.Pool) {
			p.Spec.UpdateStrategy.MaxUnavailable = &one
		})
	settled(t, p, 3, 0, 3)
	batch := makeBatch(t, ns, "b", 1)
	kept := served(t, batch, 1)
	settled(t, p, 3, 1, 2)
	revision := get(t, p).Status.Revision
	change(t, p, func() { p.Spec.Template.Spec.Containers[0].Image = "main:2" })
	eventually(t, func() string {
		s := get(t, p).Status
		if s.Revision == revision || s.Available < 2 || s.Updated != s.Total-1 {
			return fmt.Sprintf("status is %+v", s)
		}
		return ""
	})
	for name, pod := range podsIn(t, ns) {
		if old := pod.Spec.Containers[0].Image == "main:1"; old != slices.Contains(kept, name) {
			t.Errorf("pod %s has image %s", name, pod.Spec.Containers[0].Image)
		}
	}
	awaitEvent(t, ns, "PodsReplaced")
}

// TestUpdateIsAwaited: while an update goes on, a batch that requires what the new template
// provides gets no pod of the old one, and holds up no other batch.
func TestUpdateIsAwaited(t *testing.T) {
	ns := namespace(t)
	c := start(t, ns, pool.Options{})
	one := intstr.FromInt32(1)
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 4, BufferMax: 4, PoolMax: 10},
		func(p *v1alpha1.Pool) { p.Spec.UpdateStrategy.MaxUnavailable = &one })
	settled(t, p, 4, 0, 4)
	requiring := func(name, requires string) *v1alpha1.BatchSandbox {
		b := &v1alpha1.BatchSandbox{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
				Annotations: map[string]string{v1alpha1.AnnotationRequires: requires}},
			Spec: v1alpha1.BatchSandboxSpec{Replicas: 1, PoolRef: p.Name},
		}
		if err := admin.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			c.keeper.mu.Lock()
			defer c.keeper.mu.Unlock()
			if !c.asked[name] {
				return "no pod was asked for"
			}
			return ""
		})
		return b
	}
	before := v1alpha1.Provides(p.Spec.Template)
	change(t, p, func() {
		p.Spec.Template.Spec.Containers[0].Image = "main:2"
		p.Spec.Template.Annotations = map[string]string{annotationIdle: "true"}
	})
	waiting := requiring("new", v1alpha1.Provides(p.Spec.Template))
	served(t, requiring("any", ""), 1)
	served(t, requiring("old", before), 1)
	if names := podsOf(t, waiting); len(names) > 0 {
		t.Fatalf("%q are of the old template", names)
	}
	gone := requiring("neither", "something else")
	if _, err := c.pools.Allocate(t.Context(), get(t, gone)); !errors.Is(err,
		v1alpha1.ErrInvalidPool) {
		t.Errorf("a batch that requires what the Pool never makes is answered with %v", err)
	}
	eventually(t, func() string {
		for _, pod := range podsIn(t, ns) {
			if pod.Spec.Containers[0].Image == "main:2" {
				if err := report(t.Context(), pod, 1); err != nil {
					return err.Error()
				}
				return ""
			}
		}
		return "no pod is made of the new template"
	})
	name := served(t, waiting, 1)[0]
	if pod := podsIn(t, ns)[name]; pod.Spec.Containers[0].Image != "main:2" {
		t.Errorf("the batch has a pod of %s", pod.Spec.Containers[0].Image)
	}
}
