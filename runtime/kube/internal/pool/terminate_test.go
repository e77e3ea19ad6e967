package pool

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// hooked is a client that deletes pods, after it has called a hook, and records a patch.
type hooked struct {
	client.Client
	deleting func()
	patched  bool
}

func (h *hooked) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	h.deleting()
	return nil
}

func (h *hooked) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	h.patched = true
	return nil
}

// TestGivenWhilePoolIsDeleted: a Pool stays for a batch that gets one of its pods while the others
// are being removed.
func TestGivenWhilePoolIsDeleted(t *testing.T) {
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p",
		DeletionTimestamp: new(metav1.Time), Finalizers: []string{v1alpha1.PoolFinalizer}}}
	var pods []*corev1.Pod
	for i := range parallel + 1 { // the last one waits until another one is deleted
		pods = append(pods, readyPod(fmt.Sprintf("pod%02d", i), "1"))
	}
	metrics, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := &Pools{ledger: newLedger(), metrics: metrics}
	batch, given := batchOf("b", 1, 1), []string(nil)
	api := &hooked{deleting: sync.OnceFunc(func() { given, _ = reserve(p.ledger, batch, pods) })}
	p.client = api
	if _, err := p.terminate(t.Context(), pool, pods); err != nil {
		t.Fatal(err)
	}
	if len(given) != 1 || api.patched {
		t.Errorf("the batch has %q, and the Pool goes: %t", given, api.patched)
	}
	p.ledger.batchDeleted(batch.UID)
	if _, err := p.terminate(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	if !api.patched {
		t.Error("no batch has a pod, and the Pool stays")
	}
}
