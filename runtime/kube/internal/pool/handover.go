package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// handover says which pods are about to be given to a batch that was created without the finalizer.
//
// The API server decides by the object that it reads first whether a deletion has to wait for
// finalizers, and deletes whatever the object is by then. A deletion that arrives at the same time
// as the write that gives pods therefore removes the batch, although that write sets the finalizer,
// and with the batch the record of its pods. The leader has them from its watch; the next leader
// has them from the handover, which is an annotation of the Pool.
type handover struct {
	Batch types.UID `json:"batch"`
	Pods  []string  `json:"pods"` // their names
}

// handoverEntry is a handover in the ledger.
type handoverEntry struct {
	handover
	pool  types.NamespacedName
	until time.Time // from then on no deletion can be under way that has not seen the finalizer
}

// handoverFor is how long a handover is kept while its batch exists: longer than the API server
// takes for a request (--request-timeout, a minute by default).
const handoverFor = 2 * time.Minute

// handOver writes the handover of pods to a batch, if it needs one: not when the batch was created
// with the finalizer.
func (p *Pools) handOver(ctx context.Context, batch *v1alpha1.BatchSandbox, names []string) error {
	if controllerutil.ContainsFinalizer(batch, v1alpha1.Finalizer) &&
		!p.ledger.handingOver(batch.UID) {
		return nil
	}
	h := handover{Batch: batch.UID, Pods: names}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	pool := types.NamespacedName{Namespace: batch.Namespace, Name: batch.Spec.PoolRef}
	key := v1alpha1.AnnotationHandover + utilrand.String(suffixLength)
	// It is known before it is written, because it may have been written when the answer is lost.
	p.ledger.noteHandover(key, handoverEntry{handover: h, pool: pool, until: time.Now().Add(handoverFor)})
	if err := p.annotate(ctx, pool, map[string]any{key: string(text)}); err != nil {
		return fmt.Errorf("record on the Pool which pods are given: %w", err)
	}
	return nil
}

// dropHandovers removes those that are no longer needed from a Pool.
func (p *Pools) dropHandovers(ctx context.Context, pool *v1alpha1.Pool, now time.Time) error {
	key := client.ObjectKeyFromObject(pool)
	var pods []*corev1.Pod
	if named := p.ledger.handedOver(key); len(named) > 0 {
		pods = p.ledger.podsNamed(pool.Namespace, named)
	}
	over := p.ledger.takeHandovers(key, pods, now)
	if len(over) == 0 {
		return nil
	}
	changes := make(map[string]any)
	for key := range over {
		changes[key] = nil
	}
	err := p.annotate(ctx, client.ObjectKeyFromObject(pool), changes)
	if client.IgnoreNotFound(err) != nil {
		for key, h := range over {
			p.ledger.noteHandover(key, h)
		}
		return fmt.Errorf("remove handovers of pool %s: %w", pool.Name, err)
	}
	return nil
}

// annotate changes annotations of a Pool, whatever its version; nil removes one.
func (p *Pools) annotate(ctx context.Context, key types.NamespacedName,
	annotations map[string]any) error {
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	if !p.options.Lease.Held() {
		return ErrNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	pool := new(v1alpha1.Pool)
	pool.Namespace, pool.Name = key.Namespace, key.Name
	return p.client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, patch))
}

// takeOver notes the handovers of Pools when a controller takes over. Pods that were about to be
// given to a batch that is gone, and are no other batch's, must not be given: it may have had them.
// Those that are marked have been given back. The ledger is locked, and has the batches of a list
// that was read before the Pools.
func (l *ledger) takeOver(pools []v1alpha1.Pool, pods []corev1.Pod, now time.Time) {
	l.handovers = make(map[string]handoverEntry)
	marked := make(map[types.NamespacedName]bool)
	for i := range pods {
		marked[client.ObjectKeyFromObject(&pods[i])] = isRecycling(&pods[i])
	}
	for i := range pools {
		pool := client.ObjectKeyFromObject(&pools[i])
		for key, text := range pools[i].Annotations {
			if !strings.HasPrefix(key, v1alpha1.AnnotationHandover) {
				continue
			}
			h := handoverEntry{pool: pool, until: now.Add(handoverFor)}
			if err := json.Unmarshal([]byte(text), &h.handover); err != nil {
				// It was edited: better a pod too many that no batch gets than one that two get.
				h.handover = handover{Pods: names.FindAllString(text, -1)}
			}
			l.handovers[key] = h
			if l.batches[h.Batch] != nil {
				continue
			}
			for _, name := range h.Pods {
				pod := types.NamespacedName{Namespace: pool.Namespace, Name: name}
				if _, held := l.holders[pod]; !held && !marked[pod] {
					l.orphans[pod] = true
				}
			}
		}
	}
}

func (l *ledger) noteHandover(key string, h handoverEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handovers[key] = h
}

// handingOver reports whether there is a handover to the batch.
func (l *ledger) handingOver(batch types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range maps.Values(l.handovers) {
		if h.Batch == batch {
			return true
		}
	}
	return false
}

// handedOver returns the names of the pods in the handovers of a Pool.
func (l *ledger) handedOver(pool types.NamespacedName) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.handovers {
		if h.pool == pool {
			names = append(names, h.Pods...)
		}
	}
	return names
}

// takeHandovers removes from the ledger, and returns, the handovers of a Pool that are no longer
// needed. pods are those of the Pool.
func (l *ledger) takeHandovers(pool types.NamespacedName, pods []*corev1.Pod,
	now time.Time) map[string]handoverEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := make(map[string]handoverEntry)
	for key, h := range l.handovers {
		if h.pool != pool || now.Before(h.until) {
			continue
		}
		if l.batches[h.Batch] == nil && slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return l.orphans[client.ObjectKeyFromObject(pod)] && slices.Contains(h.Pods, pod.Name)
		}) {
			continue // it is not deleted yet, and only this says that it must be
		}
		over[key] = h
		delete(l.handovers, key)
	}
	return over
}
