package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// allocationOf waits until a batch has what is wanted.
func allocationOf(t *testing.T, b *v1alpha1.BatchSandbox,
	wanted func(pods []string) bool) []string {
	t.Helper()
	var pods []string
	eventually(t, func() string {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err.Error()
		}
		a, err := b.Allocation()
		if err != nil {
			return err.Error()
		}
		if pods = a.Pods; !wanted(pods) {
			return fmt.Sprintf("%s has %q", b.Name, pods)
		}
		return ""
	})
	return pods
}

// TestFullAnnotations: a batch whose annotations cannot take its allocation is refused, and neither
// it nor one that is full at the takeover of another controller stands in front of others.
func TestFullAnnotations(t *testing.T) {
	name := namespace(t)
	full := makeBatch(t, name, "full", 1)
	base := full.DeepCopy()
	full.Annotations = map[string]string{"example.com/big": strings.Repeat("x",
		256<<10-len("example.com/big"))}
	if err := admin.Patch(t.Context(), full, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	makePool(t, name, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 2, PoolMax: 5})
	for _, younger := range []string{"one", "two"} {
		i := start(t, name, pool.Options{}) // takes over, while the full one lacks a pod
		b := makeBatch(t, name, younger, 1)
		allocationOf(t, b, func(pods []string) bool { return len(pods) == 1 })
		if _, err := i.pools.Allocate(t.Context(), full.DeepCopy()); !errors.Is(err,
			pool.ErrTooLarge) && !apierrors.IsConflict(err) {
			t.Errorf("the full one is answered with %v", err)
		}
		i.kill()
	}
}

// TestTimedOutNumbersTakeNoPods: a sandbox that has ended without a pod gets none.
func TestTimedOutNumbersTakeNoPods(t *testing.T) {
	name := namespace(t)
	b := makeBatch(t, name, "b", 4)
	base := b.DeepCopy()
	b.Status.Outcomes = "F-F"
	if err := admin.Status().Patch(t.Context(), b, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	start(t, name, pool.Options{})
	makePool(t, name, v1alpha1.CapacitySpec{BufferMin: 2, BufferMax: 5, PoolMax: 9})
	pods := allocationOf(t, b, func(pods []string) bool { return len(pods) == 4 })
	if given := slices.DeleteFunc(slices.Clone(pods),
		func(name string) bool { return name == "" }); pods[0] != "" || pods[2] != "" ||
		len(given) != 2 {
		t.Errorf("the allocation is %q", pods)
	}
}
