package batch_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// heap is a Pools as simple as can be, over real pods: each is given once, and deleted when it
// comes back. What a real Pool adds is tested where it is.
type heap struct {
	client   client.Client
	enqueuer *batch.Enqueuer
	mu       sync.Mutex
	free     []string
	owners   map[string]types.UID // of pods that were given
	err      error
	// reset is nil where pods that come back are deleted; else they stay, and what ran in them has
	// ended where it is true.
	reset map[string]bool
	// releasing is called, unless nil, before pods are taken back.
	releasing func(b *v1alpha1.BatchSandbox, shards []int)
}

func (h *heap) Holds(_ context.Context, b *v1alpha1.BatchSandbox, pod string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	owner, given := h.owners[pod]
	return !given || owner == b.UID, nil
}

func (h *heap) Allocate(ctx context.Context, b *v1alpha1.BatchSandbox) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, err := b.Allocation()
	if err != nil || h.err != nil {
		return 0, fmt.Errorf("%w", h.err)
	}
	n, missing := 0, 0
	for number := range int(b.Spec.Replicas) {
		switch {
		case !b.Lacks(a.Pods, number):
		case n == len(h.free):
			missing++
		default:
			for len(a.Pods) <= number {
				a.Pods = append(a.Pods, "")
			}
			a.Pods[number] = h.free[n]
			n++
		}
	}
	if n > 0 {
		changed := b.DeepCopy()
		changed.SetAllocation(a)
		changed.Finalizers = []string{v1alpha1.Finalizer}
		if err := h.client.Patch(ctx, changed,
			client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
			return 0, err
		}
		if h.owners == nil {
			h.owners = make(map[string]types.UID)
		}
		for _, name := range h.free[:n] {
			h.owners[name] = b.UID
		}
		h.free = h.free[n:]
		*b = *changed
	}
	return missing, nil
}

func (h *heap) Ended(pod *corev1.Pod) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reset[pod.Name]
}

func (h *heap) Retire(ctx context.Context, b *v1alpha1.BatchSandbox, shards []int) error {
	a, err := b.Allocation()
	if err != nil {
		return err
	}
	if h.releasing != nil {
		h.releasing(b, shards)
	}
	for _, number := range shards {
		pod := new(corev1.Pod)
		pod.Namespace, pod.Name = b.Namespace, a.Pods[number]
		h.mu.Lock()
		owner, stays := h.owners[pod.Name], h.reset != nil
		h.mu.Unlock()
		if owner != b.UID || stays {
			continue
		}
		if err := h.client.Delete(ctx, pod); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (h *heap) Release(ctx context.Context, b *v1alpha1.BatchSandbox, shards []int) error {
	a, err := b.Allocation()
	if err != nil {
		return err
	}
	if err := h.Retire(ctx, b, shards); err != nil {
		return err
	}
	for _, number := range shards {
		a.Pods[number] = ""
	}
	for len(a.Pods) > int(b.Spec.Replicas) && a.Pods[len(a.Pods)-1] == "" {
		a.Pods = a.Pods[:len(a.Pods)-1]
	}
	changed := b.DeepCopy()
	changed.SetAllocation(a)
	if err := h.client.Patch(ctx, changed,
		client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	*b = *changed
	return nil
}

// stock puts n ready pods into the namespace and gives them to the heap.
func (h *heap) stock(p *place, batch string, n int) {
	p.Helper()
	var names []string
	for i := range n {
		name := fmt.Sprintf("warm-%s-%d", batch, i)
		names = append(names, name)
		p.must(p.Create(p.Context(), warmPod(p.namespace, name)))
	}
	h.give(p, batch, names...)
}

// pooled makes the batch b with a Pool, which has that many pods.
func (p *place) pooled(pods int, replicas int32) {
	p.Helper()
	pools := new(heap)
	p.control(pools, nil)
	pools.stock(p, "b", pods)
	b := p.batch("b", replicas)
	b.Spec.Template, b.Spec.PoolRef = nil, "warm"
	p.must(p.Create(p.Context(), b))
}

// give gives pods to the heap once they are ready.
func (h *heap) give(p *place, batch string, names ...string) {
	p.Helper()
	p.eventually(func() error {
		for _, name := range names {
			pod := new(corev1.Pod) // as the controller's cache has it: a Pool gives no others
			if err := h.client.Get(p.Context(),
				client.ObjectKey{Namespace: p.namespace, Name: name}, pod); err != nil ||
				pod.Status.PodIP == "" {
				return fmt.Errorf("%s is not ready (%v)", name, err)
			}
		}
		return nil
	})
	h.mu.Lock()
	h.free = append(h.free, names...)
	h.mu.Unlock()
	if h.enqueuer != nil {
		h.enqueuer.Enqueue(p.namespace, batch)
	}
}

func warmPod(namespace, name string) *corev1.Pod {
	pod := new(corev1.Pod)
	pod.Namespace, pod.Name = namespace, name
	pod.Labels = map[string]string{v1alpha1.LabelPool: "warm",
		v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "sandbox/busybox:dev"}}
	return pod
}

type noTasks struct{}

func (noTasks) Sync(context.Context, *v1alpha1.BatchSandbox,
	[]*corev1.Pod) ([]batch.TaskState, error) {
	return nil, fmt.Errorf("no test of this batch has tasks")
}
func (noTasks) Forget(string, string) {}

// answers is a Claims that says of each batch's claim what the test does.
type answers struct {
	enqueuer *batch.Enqueuer
	mu       sync.Mutex
	says     map[types.NamespacedName]batch.ClaimState
	claimed  map[types.NamespacedName]string // the pod
}

func (a *answers) Sync(b *v1alpha1.BatchSandbox, pod *corev1.Pod) batch.ClaimState {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := client.ObjectKeyFromObject(b)
	if a.claimed == nil {
		a.claimed = make(map[types.NamespacedName]string)
	}
	a.claimed[key] = pod.Name
	return a.says[key]
}

func (a *answers) Forget(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claimed, types.NamespacedName{Namespace: namespace, Name: name})
}

// answer changes what is said of a claim.
func (a *answers) answer(key types.NamespacedName, state batch.ClaimState) {
	a.mu.Lock()
	if a.says == nil {
		a.says = make(map[types.NamespacedName]batch.ClaimState)
	}
	a.says[key] = state
	a.mu.Unlock()
	a.enqueuer.Enqueue(key.Namespace, key.Name)
}

// pod returns the pod that is being claimed for a batch, empty for none.
func (a *answers) pod(key types.NamespacedName) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claimed[key]
}

// script is a Tasks that says of each sandbox's task what the test does.
type script struct {
	enqueuer *batch.Enqueuer
	mu       sync.Mutex
	says     map[types.NamespacedName][]batch.TaskState
	pods     map[types.NamespacedName][]*corev1.Pod // whose tasks are followed
}

func (s *script) Sync(_ context.Context, b *v1alpha1.BatchSandbox,
	pods []*corev1.Pod) ([]batch.TaskState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		s.pods = make(map[types.NamespacedName][]*corev1.Pod)
	}
	s.pods[client.ObjectKeyFromObject(b)] = pods
	states := make([]batch.TaskState, len(pods))
	for i := range states {
		states[i].Phase = batch.TaskPending
		if said := s.says[client.ObjectKeyFromObject(b)]; pods[i] != nil && i < len(said) {
			states[i] = said[i]
		}
	}
	return states, nil
}

func (s *script) Forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, types.NamespacedName{Namespace: namespace, Name: name})
}

// follows reports whether the task of one of these sandboxes is followed.
func (s *script) follows(b *v1alpha1.BatchSandbox, shards []int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := s.pods[client.ObjectKeyFromObject(b)]
	return slices.ContainsFunc(shards,
		func(number int) bool { return number < len(pods) && pods[number] != nil })
}

func (s *script) say(namespace, name string, states ...batch.TaskState) {
	s.mu.Lock()
	if s.says == nil {
		s.says = make(map[types.NamespacedName][]batch.TaskState)
	}
	s.says[types.NamespacedName{Namespace: namespace, Name: name}] = states
	s.mu.Unlock()
	s.enqueuer.Enqueue(namespace, name)
}
