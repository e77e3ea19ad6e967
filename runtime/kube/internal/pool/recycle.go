package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// AnnotationRecycling, on a pod of a pool, says that the pod was used and must not be given before
// its containers have been restarted. It is written before the batch loses the pod, so that no
// crash makes a used pod look like a fresh one.
const AnnotationRecycling = "sandbox.internal/recycling"

const (
	resetLimit = 10 * time.Second // for one answer of a task-executor
	// this part of the recycle timeout is for a task-executor that does not answer, or refuses
	resetShare = 4
	// until the kubelet has certainly reported containers that a reset has ended
	adoptionPause = 10 * time.Second
)

// Resetter restarts the containers of a pod that was used.
type Resetter interface {
	// Reset ends every process of the sandbox, so that the kubelet starts its container again. It
	// does not wait for that. Doing it twice is harmless.
	Reset(ctx context.Context, pod *corev1.Pod) error
}

// Executor resets pods through their task-executors: POST http://POD:5758/reset.
type Executor struct {
	HTTP *http.Client // nil means one that makes a connection for each request
	// Sign makes the proofs that open the executor of a pod; nil for none.
	Sign func(namespace string, pod types.UID) func(ctx context.Context, challenge string) (string,
		error)
}

// Reset asks the pod's task-executor. Any answer but success is an error.
func (e *Executor) Reset(ctx context.Context, pod *corev1.Pod) error {
	if pod.Status.PodIP == "" {
		return fmt.Errorf("pod %s has no address", pod.Name)
	}
	executor := tasks.Client{BaseURL: "http://" + net.JoinHostPort(pod.Status.PodIP,
		strconv.Itoa(v1alpha1.PortTaskExecutor)), HTTP: e.HTTP}
	if e.Sign != nil {
		executor.Sign = e.Sign(pod.Namespace, pod.UID)
	}
	_, err := executor.Reset(ctx)
	return err
}

// recycling is the value of the annotation.
type recycling struct {
	At time.Time `json:"at"`
	By string    `json:"by"` // the run of the controller that wrote it
	// the ids of the containers that must not come back, by name
	Containers map[string]string `json:"containers"`
}

func isRecycling(object client.Object) bool {
	_, ok := object.GetAnnotations()[AnnotationRecycling]
	return ok
}

var recycledPods = builder.WithPredicates(predicate.NewPredicateFuncs(isRecycling))

// used are the containers that hold what a sandbox left: all but the task-executor, whose tasks a
// reset removes.
func used(pod *corev1.Pod) map[string]string {
	ids := make(map[string]string)
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name != v1alpha1.ContainerTaskExecutor {
			ids[c.Name] = c.ContainerID
		}
	}
	return ids
}

// cannotRestart returns why a reset would not make a pod as good as new; empty when it does.
func (p *Pools) cannotRestart(pod *corev1.Pod) string {
	if policy := pod.Spec.RestartPolicy; policy != "" && policy != corev1.RestartPolicyAlways {
		return "its restartPolicy is not Always"
	}
	if !v1alpha1.UsesTasks(&corev1.PodTemplateSpec{Spec: pod.Spec}) {
		return "it has no container " + v1alpha1.ContainerTaskExecutor
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways &&
			c.Name != v1alpha1.ContainerTaskExecutor {
			return "the task-executor does not restart the sidecar " + c.Name
		}
	}
	if len(pod.Spec.EphemeralContainers) > 0 {
		return "a user has added an ephemeral container"
	}
	ids := used(pod)
	if len(ids) != 1 {
		return fmt.Sprintf("the task-executor restarts one container, and there are %d", len(ids))
	}
	for name, id := range ids {
		if id == "" || !podReady(pod) {
			return "container " + name + " does not run"
		}
	}
	return ""
}

// mark makes a pod one that is not given.
func (p *Pools) mark(ctx context.Context, pod *corev1.Pod) error {
	if isRecycling(pod) {
		return nil
	}
	text, err := json.Marshal(recycling{At: time.Now().UTC(), By: p.epoch, Containers: used(pod)})
	if err != nil {
		return err
	}
	next := pod.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = make(map[string]string)
	}
	next.Annotations[AnnotationRecycling] = string(text)
	if err := p.patch(ctx, next, pod); err != nil {
		return err
	}
	p.ledger.noteVersion(next)
	return nil
}

// recycler restarts pods that are marked.
type recycler struct {
	*Pools
	mu    sync.Mutex
	reset map[types.UID]*reset
}

// reset is what is remembered of a pod that was reset.
type reset struct {
	mark  string    // the annotation
	judge time.Time // before that it must not be given
	back  bool      // it was seen to be ready again
}

func newRecycler(p *Pools) *recycler {
	return &recycler{Pools: p, reset: make(map[types.UID]*reset)}
}

// Reconcile brings a marked pod back: reset it, wait until its containers are other ones and the
// pod is ready, take the mark away.
func (r *recycler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	if err := r.load(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var pod corev1.Pod
	if err := r.client.Get(ctx, request.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !isRecycling(&pod) || pod.DeletionTimestamp != nil || pod.Labels[v1alpha1.LabelPool] == "" {
		r.forget(pod.UID)
		return reconcile.Result{}, nil
	}
	holder, batch, ok := r.ledger.isRecyclable(&pod)
	if !ok {
		// it is not known yet that the batch returns it, or the cache is behind
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	var mark recycling
	if err := json.Unmarshal([]byte(pod.Annotations[AnnotationRecycling]), &mark); err != nil ||
		len(mark.Containers) == 0 {
		return r.fail(ctx, &pod, holder, "the annotation "+AnnotationRecycling+" cannot be read")
	}
	now := time.Now()
	if now.Sub(mark.At) > r.options.RecycleTimeout {
		return r.fail(ctx, &pod, holder,
			fmt.Sprintf("the pod was not ready again after %s", r.options.RecycleTimeout))
	}
	changed := 0
	ids := used(&pod)
	for name, id := range mark.Containers {
		if ids[name] != "" && ids[name] != id {
			changed++
		}
	}
	if !r.done(&pod) {
		// Also where the container has ended by itself: what a sandbox left in the other one, its
		// tasks above all, goes with a reset only.
		if err := r.try(ctx, &pod); err != nil {
			if now.Sub(mark.At) > r.options.RecycleTimeout/resetShare {
				return r.fail(ctx, &pod, holder, "its task-executor does not reset it: "+err.Error())
			}
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		judge := now
		if changed > 0 || mark.By != r.epoch {
			// The container that runs, or one that an earlier run of the controller has reset, is
			// about to be another one, and the kubelet may not have said so yet.
			judge = time.Now().Add(adoptionPause)
		}
		r.remember(&pod, judge)
		if holder != "" {
			r.options.Enqueue(batch.Namespace, batch.Name)
		}
	}
	if changed < len(mark.Containers) || !podReady(&pod) {
		return reconcile.Result{RequeueAfter: mark.At.Add(r.options.RecycleTimeout).Sub(now) +
			time.Second}, nil
	}
	if holder != "" {
		// Not before it is written off does the pause begin in which no other batch gets it.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if wait := r.back(pod.UID, now).Sub(now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return r.finish(ctx, &pod)
}

func (r *recycler) try(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, resetLimit)
	defer cancel()
	return r.options.Reset.Reset(ctx, pod)
}

// finish makes the pod one that can be given.
func (r *recycler) finish(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	if !r.options.Lease.Held() {
		return reconcile.Result{}, ErrNotLeading
	}
	next := pod.DeepCopy()
	delete(next.Annotations, AnnotationRecycling)
	if err := r.patch(ctx, next, pod); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			// the watch delivers its current state
			return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
		}
		return reconcile.Result{}, fmt.Errorf("take back pod %s: %w", pod.Name, err)
	}
	r.ledger.noteVersion(next)
	r.forget(pod.UID)
	r.metrics.recycled(pod.Namespace, pod.Labels[v1alpha1.LabelPool], recycledByRestart)
	r.enqueue(pod.Namespace, pod.Labels[v1alpha1.LabelPool])
	return reconcile.Result{}, nil
}

// fail deletes a pod that does not come back.
func (r *recycler) fail(ctx context.Context, pod *corev1.Pod, holder types.UID,
	why string) (reconcile.Result, error) {
	if !r.options.Lease.Held() {
		return reconcile.Result{}, ErrNotLeading
	}
	if !r.ledger.deletionStarted(pod, holder) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err := r.delete(ctx, pod); err != nil {
		return reconcile.Result{}, fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	r.forget(pod.UID)
	var pool v1alpha1.Pool
	name := pod.Labels[v1alpha1.LabelPool]
	if err := r.client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name},
		&pool); err == nil {
		r.events.Eventf(&pool, pod, corev1.EventTypeWarning, "RecycleFailed", "Recycle",
			"Pod %s is deleted instead of given again: %s", pod.Name, why)
	}
	r.metrics.recycled(pod.Namespace, name, recycledByFailure)
	ctrl.LoggerFrom(ctx).Info("a pod that was used did not come back", "pod", pod.Name, "pool",
		name, "reason", why)
	return reconcile.Result{}, nil
}

// done reports whether a pod was reset since it was marked.
func (r *recycler) done(pod *corev1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	reset := r.reset[pod.UID]
	return reset != nil && reset.mark == pod.Annotations[AnnotationRecycling]
}

func (r *recycler) remember(pod *corev1.Pod, judge time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset[pod.UID] = &reset{mark: pod.Annotations[AnnotationRecycling], judge: judge}
}

// back takes the news that a pod that was reset is ready again, and returns from when on it may be
// given: not before ReusePause, and so not in the second in which its container was started, of
// whose output it is unknown whose it is (cleanSince).
func (r *recycler) back(uid types.UID, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.reset[uid]
	if until := now.Add(v1alpha1.ReusePause); !pod.back && pod.judge.Before(until) {
		pod.judge = until
	}
	pod.back = true
	return pod.judge
}

func (r *recycler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reset, uid)
}
