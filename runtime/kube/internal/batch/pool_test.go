package batch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestPoolWrites: what a batch costs the API server does not follow its size.
func TestPoolWrites(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	cost := make(map[int32]int64)
	for _, size := range []int32{2, 40} {
		name := fmt.Sprintf("b%d", size)
		pools.stock(p, name, int(size))
		before := p.writes.Load()
		b := p.batch(name, size)
		b.Spec.Template, b.Spec.PoolRef = nil, "warm"
		p.must(p.Create(t.Context(), b))
		b = p.has(name, "running", running(size))
		cost[size] = p.writes.Load() - before
		if b.Status.Allocated != size || len(b.Status.Addresses) != int(size) ||
			history(b) != "Pending Running" {
			t.Errorf("history %q, status %+v", history(b), b.Status)
		}
	}
	t.Logf("writes by size: %v", cost)
	if cost[40] > 4 { // the allocation and the status; a conflict repeats one of them
		t.Errorf("writes by size: %v", cost)
	}

	// Scaled down, one gone by foreign hand, ended.
	p.change("b40", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 3 })
	p.has("b40", "scaled down", running(3))
	p.must(p.Delete(t.Context(), p.pod("warm-b40-1")))
	b := p.has("b40", "degraded",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Outcomes == "-F" })
	p.eventually(func() error {
		b = p.has("b40", "there", func(*v1alpha1.BatchSandbox) bool { return true })
		if a, err := b.Allocation(); err != nil ||
			!slices.Equal(a.Pods, []string{"warm-b40-0", "", "warm-b40-2"}) {
			return fmt.Errorf("the allocation is %+v (%v)", a, err)
		}
		return nil
	})
	p.must(p.Delete(t.Context(), b))
	p.isGone("b40")
	p.must(p.Delete(t.Context(),
		&v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "b2"}}))
	p.isGone("b2")
	p.eventually(func() error {
		var pods corev1.PodList
		if err := p.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil ||
			len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left (%v)", len(pods.Items), err)
		}
		return nil
	})
}

func TestPoolIsMissing(t *testing.T) {
	p := newPlace(t)
	pools := &heap{err: v1alpha1.ErrNoPool}
	p.control(pools, nil)
	b := p.batch("b", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	p.must(p.Create(t.Context(), b))
	p.has("b", "waiting", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Reason == v1alpha1.ReasonPoolNotFound &&
			strings.Contains(b.Status.Message, "no Pool cold")
	})
	pools.mu.Lock()
	pools.err = nil
	pools.mu.Unlock()
	p.has("b", "waiting for pods",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Reason == v1alpha1.ReasonResourceLimit })
	p.change("b",
		func(b *v1alpha1.BatchSandbox) { b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1) })
	if b := p.reaches("b", v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonResourceLimit {
		t.Errorf("%+v", b.Status)
	}

	// So does one that the pool gives nothing for a cause that may pass.
	pools.mu.Lock()
	pools.err = errors.New("the ledger cannot be written")
	pools.mu.Unlock()
	b = p.batch("unwritten", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](60)
	p.must(p.Create(t.Context(), b))
	p.reaches("unwritten", v1alpha1.PhasePending)
	p.later(2*time.Minute, "unwritten")
	b = p.reaches("unwritten", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonProvisionTimeout ||
		!strings.Contains(b.Status.Message, "the ledger cannot be written") {
		t.Errorf("%+v", b.Status)
	}

	// One whose annotations cannot take the names fails at once.
	pools.mu.Lock()
	pools.err = fmt.Errorf("%w: 300000 bytes", v1alpha1.ErrTooLarge)
	pools.mu.Unlock()
	b = p.batch("full", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	p.must(p.Create(t.Context(), b))
	b = p.reaches("full", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonResourceLimit ||
		!strings.Contains(b.Status.Message, "300000 bytes") ||
		!meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionInvalid) {
		t.Errorf("%+v", b.Status)
	}
}
