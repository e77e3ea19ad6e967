package pool_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
)

func TestCapacity(t *testing.T) {
	t.Run("row lifecycle/cluster/Pool capacitySpec", func(t *testing.T) {
		ns := namespace(t)
		start(t, ns, pool.Options{})
		p := makePool(t, ns,
			v1alpha1.CapacitySpec{BufferMin: 2, BufferMax: 4, PoolMin: 2, PoolMax: 6})
		settled(t, p, 4, 0, 4)

		one := makeBatch(t, ns, "one", 1)
		served(t, one, 1)
		settled(t, p, 4, 1, 3) // still more than bufferMin wait

		two := makeBatch(t, ns, "two", 2)
		served(t, two, 2)
		settled(t, p, 6, 3, 3) // one waited: more up to bufferMax, but no more than poolMax

		six := makeBatch(t, ns, "six", 6)
		served(t, six, 3)
		settled(t, p, 6, 6, 0) // poolMax holds back the others
		if n := len(podsIn(t, ns)); n != 6 {
			t.Errorf("there are %d pods, and poolMax is 6", n)
		}
		if c := meta.FindStatusCondition(get(t, p).Status.Conditions,
			v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionFalse {
			t.Errorf("a pool whose batches wait says %+v", c)
		}

		remove(t, one)
		remove(t, two)
		served(t, six, 6) // what was given back was deleted, and others took its place
		remove(t, six)
		eventually(t, func() string {
			// how many are made depends on how many were gone when the buffer was low
			if s := get(t, p).Status; s.Allocated != 0 || s.Available < 2 || s.Available > 4 ||
				s.Total != s.Available {
				return fmt.Sprintf("the unused pool has the status %+v", s)
			}
			return ""
		})

		change(t, p, func() {
			p.Spec.CapacitySpec = v1alpha1.CapacitySpec{BufferMin: 0, BufferMax: 1, PoolMin: 1,
				PoolMax: 5}
		})
		settled(t, p, 1, 0, 1) // the surplus is removed
		change(t, p, func() { p.Spec.CapacitySpec.PoolMin = 3 })
		settled(t, p, 3, 0, 3) // more than bufferMax, because poolMin asks for them
		awaitEvent(t, ns, "PodsRemoved")
		awaitEvent(t, ns, "PodsCreated")

		for rule, c := range map[string]v1alpha1.CapacitySpec{
			"bufferMin must not be greater than bufferMax": {BufferMin: 2, BufferMax: 1,
				PoolMax: 5},
			"poolMin must not be greater than poolMax":   {PoolMin: 6, PoolMax: 5},
			"bufferMax must not be greater than poolMax": {BufferMax: 6, PoolMax: 5},
		} {
			nonsense := &v1alpha1.Pool{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nonsense"},
				Spec:       v1alpha1.PoolSpec{Template: template(), CapacitySpec: c},
			}
			if err := admin.Create(t.Context(), nonsense); err == nil ||
				!strings.Contains(err.Error(), rule) {
				t.Errorf("%+v: %v; want %q", c, err, rule)
			}
		}
	})
}

// withExecutor gives a pool what tasks need.
func withExecutor(p *v1alpha1.Pool) {
	share := true
	p.Spec.Template.Spec.ShareProcessNamespace = &share
	p.Spec.Template.Spec.Containers = append(p.Spec.Template.Spec.Containers, corev1.Container{
		Name: v1alpha1.ContainerTaskExecutor, Image: "task-executor:1",
		SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}},
	})
}

func TestTemplate(t *testing.T) {
	t.Run("row lifecycle/cluster/Pool template", func(t *testing.T) {
		ns := namespace(t)
		start(t, ns, pool.Options{})
		p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 2},
			withExecutor, func(p *v1alpha1.Pool) {
				p.Spec.Template.Spec.ShareProcessNamespace = nil
			})
		batch := makeBatch(t, ns, "b", 1)
		refused := func(rule string) {
			t.Helper()
			eventually(t, func() string {
				c := meta.FindStatusCondition(get(t, p).Status.Conditions,
					v1alpha1.ConditionInvalid)
				if c == nil || c.Status != metav1.ConditionTrue ||
					!strings.Contains(c.Message, rule) {
					return fmt.Sprintf("the pool says %+v, not %q", c, rule)
				}
				return ""
			})
		}
		refused("shareProcessNamespace")
		change(t, p, func() {
			share := true
			p.Spec.Template.Spec.ShareProcessNamespace = &share
			p.Spec.Template.Spec.Containers[1].SecurityContext = nil
		})
		refused("SYS_PTRACE")
		if n := len(podsIn(t, ns)); n != 0 {
			t.Errorf("%d pods were made from a template that is invalid", n)
		}
		change(t, p, func() {
			p.Spec.Template = template()
			withExecutor(p)
		})
		served(t, batch, 1)
		settled(t, p, 2, 1, 1)
		if c := meta.FindStatusCondition(get(t, p).Status.Conditions,
			v1alpha1.ConditionInvalid); c == nil || c.Status != metav1.ConditionFalse {
			t.Errorf("a valid pool says %+v", c)
		}
	})
}

// TestWritesOfAnAllocation: a batch of any size costs one write, none to a pod, and one to the Pool
// if it was created without the finalizer.
func TestWritesOfAnAllocation(t *testing.T) {
	ns := namespace(t)
	c := start(t, ns, pool.Options{})
	p := makePool(t, ns,
		v1alpha1.CapacitySpec{BufferMin: 0, BufferMax: 111, PoolMin: 111, PoolMax: 111})
	settled(t, p, 111, 0, 111)
	before := c.count()
	given := int32(0)
	for i, size := range []int32{1, 10, 50, 50} {
		finalizers, handovers := []string{v1alpha1.Finalizer}, 0
		if i == 2 {
			finalizers, handovers = nil, 1
		}
		batch := makeBatch(t, ns, fmt.Sprintf("%d-of-%d", i, size), size, finalizers...)
		served(t, batch, int(size))
		given += size
		settled(t, p, 111, given, 111-given)
		after := c.count()
		for what, n := range map[string]int{"PATCH batchsandboxes": 1, "PATCH pools": handovers, "PATCH pods": 0,
			"POST pods": 0, "DELETE pods": 0} {
			if got := after[what] - before[what]; got != n {
				t.Errorf("a batch of %d: %d times %s, not %d", size, got, what, n)
			}
		}
		for what := range after {
			if !strings.HasPrefix(what, "PATCH pools") && after[what] != before[what] &&
				what != "PATCH batchsandboxes" {
				t.Errorf("a batch of %d: %d times %s", size, after[what]-before[what], what)
			}
		}
		t.Logf("a batch of %3d: %d write to the batch, %d to the status of the pool", size,
			after["PATCH batchsandboxes"]-before["PATCH batchsandboxes"],
			after["PATCH pools/status"]-before["PATCH pools/status"])
		before = after
	}
}

// TestEvict: the label removes a pod as soon as no batch has it.
func TestEvict(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 3})
	batch := makeBatch(t, ns, "b", 1)
	used := served(t, batch, 1)
	settled(t, p, 2, 1, 1)
	for _, pod := range podsIn(t, ns) {
		change(t, pod, func() { pod.Labels[v1alpha1.LabelEvict] = "true" })
	}
	eventually(t, func() string {
		pods := podsIn(t, ns)
		if pods[used[0]] == nil {
			t.Fatal("the allocated pod was removed")
		}
		for name, pod := range pods {
			if _, evicted := pod.Labels[v1alpha1.LabelEvict]; evicted && name != used[0] {
				return "the pod that waits is still there"
			}
		}
		if len(pods) != 2 {
			return fmt.Sprintf("there are %d pods, not 2", len(pods))
		}
		return ""
	})
	remove(t, batch)
	eventually(t, func() string {
		if podsIn(t, ns)[used[0]] != nil {
			return "the pod belongs to no batch and is still there"
		}
		return ""
	})
}

// TestDeletePool: those that wait go at once, those that are allocated when their batch ends, and
// then the pool.
func TestDeletePool(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 2, BufferMax: 2, PoolMax: 5})
	batch := makeBatch(t, ns, "b", 1)
	used := served(t, batch, 1)
	settled(t, p, 3, 1, 2)
	remove(t, p)
	eventually(t, func() string {
		pods := podsIn(t, ns)
		if pods[used[0]] == nil {
			t.Fatal("the allocated pod was removed")
		}
		if len(pods) != 1 {
			return fmt.Sprintf("there are %d pods, not 1", len(pods))
		}
		return ""
	})
	late := makeBatch(t, ns, "late", 1)
	if !exists(t, p) {
		t.Fatal("the pool is gone before its batch")
	}
	remove(t, batch)
	eventually(t, func() string {
		if exists(t, p) || len(podsIn(t, ns)) > 0 {
			return "the pool or a pod is still there"
		}
		return ""
	})
	if names := podsOf(t, late); len(names) > 0 {
		t.Errorf("a pool that was being deleted gave %v", names)
	}
	// A new pool of that name serves who waits.
	makePool(t, ns, v1alpha1.CapacitySpec{PoolMax: 5})
	served(t, late, 1)
}

// TestLostPods: an allocated pod that is deleted behind our back leaves its slot, and no other pod
// takes it.
func TestLostPods(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 5})
	batch := makeBatch(t, ns, "b", 2)
	names := served(t, batch, 2)
	settled(t, p, 3, 2, 1)
	remove(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: names[0]}})
	settled(t, p, 2, 1, 1)
	if now := podsOf(t, batch); !slices.Equal(now, names) {
		t.Errorf("the batch has %v, and had %v", now, names)
	}
	remove(t, batch)
	settled(t, p, 1, 0, 1)
}

// TestBatchGoneWithItsRecord: a batch that was created without the finalizer is deleted although it
// has pods, while no controller runs: as the API server does where the deletion has read the batch
// before it had them. The next controller does not give them again.
func TestBatchGoneWithItsRecord(t *testing.T) {
	ns := namespace(t)
	first := start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 4})
	batch := makeBatch(t, ns, "b", 2)
	used := served(t, batch, 2)
	first.kill()
	base := batch.DeepCopy()
	batch.Finalizers = nil
	if err := admin.Patch(t.Context(), batch, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	remove(t, batch)
	start(t, ns, pool.Options{})
	next := makeBatch(t, ns, "next", 4)
	for _, name := range served(t, next, 4) {
		if slices.Contains(used, name) {
			t.Errorf("the used pod %s was given again", name)
		}
	}
	settled(t, p, 4, 4, 0)
}

// TestCopiedBatches: the pods of a batch stay its own when it is copied with its annotations, also
// for the next controller.
func TestCopiedBatches(t *testing.T) {
	ns := namespace(t)
	first := start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 4})
	batch := makeBatch(t, ns, "b", 1)
	name := served(t, batch, 1)[0]
	settled(t, p, 2, 1, 1)
	var copies []*v1alpha1.BatchSandbox
	for i := range 8 {
		c := &v1alpha1.BatchSandbox{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("copy%d", i),
				Annotations: batch.Annotations},
			Spec: batch.Spec,
		}
		if err := admin.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, c)
	}
	check := func(pools *pool.Pools) {
		t.Helper()
		for _, b := range append(copies, batch) {
			holds, err := pools.Holds(t.Context(), get(t, b), name)
			if err != nil || holds != (b == batch) {
				t.Errorf("%s has the pod: %t (%v)", b.Name, holds, err)
			}
		}
	}
	check(first.pools)
	first.kill()
	next := start(t, ns, pool.Options{})
	eventually(t, func() string {
		if _, err := next.pools.Holds(t.Context(), get(t, batch), name); err != nil {
			return err.Error()
		}
		return ""
	})
	check(next.pools)
	for _, c := range copies {
		if err := next.pools.Release(t.Context(), get(t, c), []int{0}); err != nil {
			t.Error(err)
		}
	}
	if pod := podsIn(t, ns)[name]; pod == nil || pod.DeletionTimestamp != nil {
		t.Errorf("a copy gave back the pod: %+v", pod)
	}
}

// TestForcedBatch: the pods of a batch whose finalizer a user removed are not given again.
func TestForcedBatch(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 2})
	batch := makeBatch(t, ns, "b", 1)
	used := served(t, batch, 1)
	base := batch.DeepCopy()
	batch.Finalizers = nil
	if err := admin.Patch(t.Context(), batch, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	remove(t, batch)
	eventually(t, func() string {
		if podsIn(t, ns)[used[0]] != nil {
			return "the pod belongs to no batch and is still there"
		}
		return ""
	})
	settled(t, p, 1, 0, 1)
	next := makeBatch(t, ns, "next", 2)
	if slices.Contains(served(t, next, 2), used[0]) {
		t.Error("a used pod was given again")
	}
}
