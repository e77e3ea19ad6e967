package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/pool"
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
			v1alpha1.ErrTooLarge) && !apierrors.IsConflict(err) {
			t.Errorf("the full one is answered with %v", err)
		}
		i.kill()
	}
}

// TestNoRoomInEtcd: a batch that is so large that etcd takes no label more stands in front of no
// other when a controller takes over, and the answer to its own request for a pod says why.
func TestNoRoomInEtcd(t *testing.T) {
	name := namespace(t)
	const limit = 3 << 19 // of etcd, for a request, in bytes
	large := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "large"},
		Spec: v1alpha1.BatchSandboxSpec{Replicas: 1, PoolRef: "p",
			TaskTemplate: &v1alpha1.TaskTemplate{Command: []string{strings.Repeat("x", limit-256)}}},
	}
	for { // the first size that etcd takes; a label needs more than the difference to the last one
		command := large.Spec.TaskTemplate.Command
		command[0] = command[0][:len(command[0])-64]
		err := admin.Create(t.Context(), large)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "etcdserver: request is too large") {
			t.Fatal(err)
		}
	}
	i := start(t, name, pool.Options{}, large.Name)
	makePool(t, name, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 2, PoolMax: 5}, withExecutor)
	b := makeBatch(t, name, "b", 1)
	served(t, b, 1)
	eventually(t, func() string {
		if _, err := i.pools.Allocate(t.Context(), get(t, large)); !errors.Is(err,
			v1alpha1.ErrTooLarge) {
			return fmt.Sprintf("the large one is answered with %v", err)
		}
		return ""
	})
}

// TestTimedOutNumbersTakeNoPods: a sandbox that has ended without a pod gets none, and one that has
// lost its pod with the annotation gets no other.
func TestTimedOutNumbersTakeNoPods(t *testing.T) {
	name := namespace(t)
	b := makeBatch(t, name, "b", 6)
	base := b.DeepCopy()
	b.Status.Outcomes = "F-F"
	b.Status.Addresses = []string{"", "", "", "", "10.1.2.3"}
	if err := admin.Status().Patch(t.Context(), b, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	start(t, name, pool.Options{})
	makePool(t, name, v1alpha1.CapacitySpec{BufferMin: 2, BufferMax: 5, PoolMax: 9})
	pods := allocationOf(t, b, func(pods []string) bool { return len(pods) == 6 })
	if given := slices.DeleteFunc(slices.Clone(pods),
		func(name string) bool { return name == "" }); pods[0] != "" || pods[2] != "" ||
		pods[4] != "" || len(given) != 3 {
		t.Errorf("the allocation is %q", pods)
	}
}
