// Package batch makes BatchSandboxes what their spec says: pods, expiry, pause, tasks and the
// status that shows them.
package batch

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// Pools gives batches pods that wait in a Pool, and takes them back. A pod is never given twice.
type Pools interface {
	// Allocate gives the batch as many of its pool's ready pods as it lacks, as far as there are
	// any, in one write to the API server: the allocation annotation and the finalizer of the
	// batch. It changes the batch that it is given to what was written, and returns how many pods
	// are still missing. The pool records the demand and makes more; the batch is reconciled again
	// when there are. It returns [v1alpha1.ErrNoPool], [v1alpha1.ErrPoolEnds],
	// [v1alpha1.ErrPoolTooSmall], [v1alpha1.ErrInvalidPool] and [v1alpha1.ErrTooLarge].
	Allocate(ctx context.Context, batch *v1alpha1.BatchSandbox) (missing int, err error)

	// Holds reports whether a pod that the batch's allocation names is the batch's, and not another
	// one's, as where the annotation was copied. It may return an error for which
	// apierrors.IsConflict is true when the batch is not the latest.
	Holds(ctx context.Context, batch *v1alpha1.BatchSandbox, pod string) (bool, error)

	// Retire begins to take pods back, by the sandboxes' numbers: each is deleted, or marked as not
	// to be given before it is restarted, so that no other batch can see what the sandbox left. The
	// allocation keeps their names. It is idempotent.
	Retire(ctx context.Context, batch *v1alpha1.BatchSandbox, shards []int) error

	// Ended reports whether everything of its sandbox has ended in a pod that Retire has marked.
	// The batch is reconciled when that becomes true.
	Ended(pod *corev1.Pod) bool

	// Release retires pods, where that was not done, and then writes the allocation without them:
	// with an empty name in the place of each, and cut to spec.replicas. It is idempotent.
	Release(ctx context.Context, batch *v1alpha1.BatchSandbox, shards []int) error
}

// Tasks runs the tasks of a batch through the task-executors of its pods.
type Tasks interface {
	// Sync makes the tasks what the batch asks for, without waiting for them, and returns what is
	// known of each now, by the sandboxes' numbers. Later changes cause a reconcile of the batch.
	// pods has nil for sandboxes that have no pod yet, or none any more: a task whose end is not
	// known is then followed no more.
	Sync(ctx context.Context, batch *v1alpha1.BatchSandbox, pods []*corev1.Pod) ([]TaskState, error)

	// Forget removes everything that is kept in memory for the batch: from then on no task of it is
	// sent to a pod.
	Forget(namespace, name string)
}

// Claims makes waiting pods of a Pool the sandboxes of batches.
type Claims interface {
	// Sync claims the pod for the batch, without waiting for that, and returns what is known of it
	// now. Later changes cause a reconcile of the batch. A claim that was made already is found to
	// be.
	Sync(batch *v1alpha1.BatchSandbox, pod *corev1.Pod) ClaimState

	// Forget removes what is kept in memory for the batch: from then on no pod is claimed for it.
	Forget(namespace, name string)
}

// ClaimState is what is known of the claim of a pod.
type ClaimState struct {
	Done    bool   // the pod has proved that it is the sandbox
	Failed  bool   // it never will be
	Reason  string // of a failure, upper snake case
	Message string // why it is not done
}

// TaskState is what is known of the task of one sandbox.
type TaskState struct {
	Phase    TaskPhase
	Ready    bool   // it runs, and its readiness answered
	ExitCode *int32 // once it has ended by itself
	Reason   string // upper snake case
	Message  string
}

// ended reports whether the task will not change any more.
func (t TaskState) ended() bool { return t.Phase == TaskSucceeded || t.Phase == TaskFailed }

// TaskPhase is what a task does.
type TaskPhase string

// The phases of tasks, as counted in the status of a batch.
const (
	TaskPending   TaskPhase = "Pending"
	TaskRunning   TaskPhase = "Running"
	TaskSucceeded TaskPhase = "Succeeded"
	TaskFailed    TaskPhase = "Failed"
	TaskUnknown   TaskPhase = "Unknown"
)

// Enqueuer requests that batches are reconciled. It is used for what the controller does not watch:
// by Pools, when pods have become ready for batches that lack some; by Tasks, when the state of a
// task has changed. The zero value is ready to use; requests before the controller runs are
// dropped, because the controller reconciles everything when it starts.
type Enqueuer struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// Enqueue requests that a batch is reconciled. It does not block.
func (w *Enqueuer) Enqueue(namespace, name string) { w.enqueueAfter(namespace, name, 0) }

// enqueueAfter is Enqueue after a pause.
func (w *Enqueuer) enqueueAfter(namespace, name string, pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{
			Namespace: namespace, Name: name}}, pause)
	}
}

// start is the controller's source of these requests.
func (w *Enqueuer) start(_ context.Context,
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	return nil
}
