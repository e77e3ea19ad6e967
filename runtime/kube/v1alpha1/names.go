package v1alpha1

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations that we set and read.
const (
	// on a pod made from a batch's own template: the batch's name
	LabelBatch = "sandbox.internal/batch"
	LabelShard = "sandbox.internal/shard" // on such a pod: the sandbox's number
	LabelPool  = "sandbox.internal/pool"  // on a pod of a pool: the pool's name
	// on a pod of a pool: the hash of the template that it was made from
	LabelRevision = "sandbox.internal/revision"
	// LabelProvides, on a pod of a pool, is what Provides says of the template that it was made
	// from.
	LabelProvides = "sandbox.internal/provides"
	// LabelManagedBy, with the value ManagedBy, is on every pod that the controller makes, from a
	// batch's template and for a pool alike: the controller sees no other pods.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "sandbox-controller"
	// LabelEvict, with any value, on a pod of a pool asks for its removal as soon as it is not
	// allocated.
	LabelEvict = "sandbox.internal/evict"

	// AnnotationAllocation, on a BatchSandbox, is its Allocation as JSON: the only record of which
	// pods are whose.
	AnnotationAllocation = "sandbox.internal/allocation"

	// AnnotationRequires, on a BatchSandbox with a Pool, is a value of LabelProvides: the batch
	// gets no pods but those. It fails when none is ready and the Pool's template provides
	// something else.
	AnnotationRequires = "sandbox.internal/requires"

	// AnnotationHandover begins the names of annotations of a Pool that say which pods are about to
	// be given to a BatchSandbox that was created without Finalizer.
	AnnotationHandover = "handover.sandbox.internal/"

	// AnnotationStop, on a BatchSandbox, ends it, unless it is empty; the value is the reason in
	// its record, such as USER_DELETE. It cannot be taken back. The record stays for
	// ttlSecondsAfterFinished, unlike with a DELETE of the BatchSandbox.
	AnnotationStop = "sandbox.internal/stop"

	// AnnotationTimedOut, on a BatchSandbox with spec.sleep.timeout, is when the sandbox has fallen
	// asleep at expireTime, or would have. Without a sleep between, the sandbox ends at the next.
	AnnotationTimedOut = "sandbox.internal/timed-out"

	// AnnotationMainContainer, on a pod, names its main container.
	AnnotationMainContainer = "kubectl.kubernetes.io/default-container"

	// Finalizer keeps a BatchSandbox until its pods are released. A client that creates one for a
	// Pool should set it: then its pods are given in one write.
	Finalizer = "sandbox.internal/pods"
)

// The pods' parts.
const (
	ContainerTaskExecutor = "task-executor" // lifecycle document, "Cluster resources"
	ContainerEgress       = "egress"        // the init container that is the egress sidecar
	PortTaskExecutor      = 5758
	PortExecd             = 44772
	PortEgress            = 18080
)

// How the controller proves itself to the task-executor in a pod: it signs with the key of the
// namespace, which it keeps in the Secret SecretExecutors, and gives the executor's container the
// public part and the pod's UID as variables.
const (
	SecretExecutors  = "sandbox-task-executors"
	EntryExecutorKey = "key" // of that Secret: the seed of an Ed25519 key, 32 bytes
	EnvExecutorKey   = "TASK_EXECUTOR_CONTROLLER_KEY"
	EnvExecutorPod   = "TASK_EXECUTOR_POD"
)

// How the controller talks to the execd in a pod: its token is the variable EnvExecdToken of the
// task template, or else of a container of the pod.
const (
	EnvExecdToken    = "EXECD_ACCESS_TOKEN"
	HeaderExecdToken = "X-EXECD-ACCESS-TOKEN"
)

// The token of an egress sidecar: its variable, and the header of its API.
const (
	EnvEgressToken    = "EGRESS_ACCESS_TOKEN"
	HeaderEgressToken = "X-EGRESS-ACCESS-TOKEN"
)

// The letters of BatchSandboxStatus.Outcomes.
const (
	// OutcomeActive: the sandbox has not ended.
	OutcomeActive = '-'
	// OutcomeSucceeded and OutcomeFailed: the sandbox has ended, and its pod is released.
	OutcomeSucceeded = 'S'
	OutcomeFailed    = 'F'
	// OutcomeSucceededPodKept and OutcomeFailedPodKept: the task has ended, and the pod is kept.
	OutcomeSucceededPodKept = 's'
	OutcomeFailedPodKept    = 'f'
	// OutcomeReleased: the number was not wanted any more, and its pod is released.
	OutcomeReleased = 'R'
)

// Ended reports whether the sandbox of a number has ended, so that its pod is released and it gets
// no other.
func (s *BatchSandboxStatus) Ended(number int) bool {
	return number < len(s.Outcomes) &&
		(s.Outcomes[number] == OutcomeSucceeded || s.Outcomes[number] == OutcomeFailed)
}

// Lacks reports whether the sandbox of a number may be given a pod beside those of the allocation,
// which are by number: only one that has not ended and whose number has no pod to give back. The
// status must not have an address of it: that pod was in the allocation, and is lost with it where
// the annotation was removed.
func (b *BatchSandbox) Lacks(pods []string, number int) bool {
	s := &b.Status
	active := number >= len(s.Outcomes) || s.Outcomes[number] == OutcomeActive
	recorded := number < len(s.Addresses) && s.Addresses[number] != ""
	return active && !recorded && (number >= len(pods) || pods[number] == "")
}

// Allocation lists the pods of a pool that belong to a batch. It is one annotation, written at once
// for all of them.
type Allocation struct {
	// Pods by the sandboxes' numbers. An empty name stands for a pod that was released, or for one
	// that there is not yet.
	Pods []string `json:"pods"`
	// Since is from when on, by the clocks of the pods' nodes, the pods' logs have nothing of the
	// batches that had the pods before. Nil when that is unknown.
	Since *metav1.Time `json:"since,omitempty"`
}

// ReusePause is for how long at least a pod that was taken from a batch, and is ready again, is
// given to no other. A reader of a pod's log reads no line of another batch within that time after
// it learned that the batch had the pod.
const ReusePause = 2 * time.Second

// Allocation returns the batch's allocation, empty when it has none. It returns an error for an
// annotation that is not one of ours.
func (b *BatchSandbox) Allocation() (Allocation, error) {
	text, ok := b.Annotations[AnnotationAllocation]
	if !ok {
		return Allocation{}, nil
	}
	var a Allocation
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return Allocation{},
			fmt.Errorf("annotation %s of BatchSandbox %s: %w", AnnotationAllocation, b.Name, err)
	}
	return a, nil
}

// SetAllocation writes the annotation into the object, not to the cluster.
func (b *BatchSandbox) SetAllocation(a Allocation) {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings always marshal
	}
	if b.Annotations == nil {
		b.Annotations = make(map[string]string)
	}
	b.Annotations[AnnotationAllocation] = string(text)
}
