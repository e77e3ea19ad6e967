package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// BatchSandbox is a number of sandboxes with one lifetime: pods from a template of its own, or pods
// of a Pool.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas
// +kubebuilder:resource:path=batchsandboxes,shortName=bsbx,scope=Namespaced
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="TOTAL",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="ALLOCATED",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="TASK_RUNNING",type=integer,priority=1,JSONPath=`.status.taskStats.running`
// +kubebuilder:printcolumn:name="TASK_SUCCEED",type=integer,priority=1,JSONPath=`.status.taskStats.succeed`
// +kubebuilder:printcolumn:name="TASK_FAILED",type=integer,priority=1,JSONPath=`.status.taskStats.failed`
// +kubebuilder:printcolumn:name="TASK_UNKNOWN",type=integer,priority=1,JSONPath=`.status.taskStats.unknown`
// +kubebuilder:printcolumn:name="PHASE",type=string,priority=1,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="EXPIRE",type=string,JSONPath=`.spec.expireTime`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 58 && !self.metadata.name.contains('.')",message="the name must be a DNS label of at most 58 characters, because pods are named after it"
type BatchSandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BatchSandboxSpec   `json:"spec"`
	Status BatchSandboxStatus `json:"status,omitempty"`
}

// BatchSandboxList is a list of BatchSandboxes.
//
// +kubebuilder:object:root=true
type BatchSandboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BatchSandbox `json:"items"`
}

// BatchSandboxSpec is the desired state.
//
// +kubebuilder:validation:XValidation:rule="has(self.template) != has(self.poolRef)",message="exactly one of template and poolRef must be set"
// +kubebuilder:validation:XValidation:rule="has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef == oldSelf.poolRef)",message="poolRef is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.shardPatches) || has(self.template)",message="shardPatches need a template: pods of a pool exist before the batch does"
// +kubebuilder:validation:XValidation:rule="!has(self.shardTaskPatches) || has(self.taskTemplate)",message="shardTaskPatches need a taskTemplate"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || has(self.poolRef) && !has(self.taskTemplate)",message="claim needs a poolRef, and excludes a taskTemplate"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || self.replicas == 1",message="replicas must be 1 with a claim, which makes one sandbox"
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(oldSelf.claim) && (!has(self.claim) || self.claim == oldSelf.claim)",message="claim is immutable"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.shardPatches) || size(self.shardPatches) <= self.replicas",message="there are more shardPatches than replicas",optionalOldSelf=true
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.shardTaskPatches) || size(self.shardTaskPatches) <= self.replicas",message="there are more shardTaskPatches than replicas",optionalOldSelf=true
// +kubebuilder:validation:XValidation:rule="!has(self.pause) || !self.pause || !has(oldSelf.pause) || !oldSelf.pause || self.replicas == oldSelf.replicas",message="replicas cannot change while the batch is paused"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || has(self.taskTemplate) == has(oldSelf.taskTemplate) && (!has(self.taskTemplate) || self.taskTemplate == oldSelf.taskTemplate)",message="taskTemplate is immutable while there are replicas: their tasks run already, and no task runs twice"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || has(self.shardTaskPatches) == has(oldSelf.shardTaskPatches) && (!has(self.shardTaskPatches) || self.shardTaskPatches == oldSelf.shardTaskPatches)",message="shardTaskPatches are immutable while there are replicas: their tasks run already, and no task runs twice"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || !has(self.taskTemplate) || !has(self.template) || !has(oldSelf.template) || self.template == oldSelf.template",message="template is immutable while there are replicas with tasks"
// +kubebuilder:validation:XValidation:rule="!has(self.sleep) || self.replicas <= 1 && !has(self.taskTemplate)",message="sleep needs one replica at most, and excludes a taskTemplate"
type BatchSandboxSpec struct {
	// Replicas is the number of sandboxes, which are numbered from 0. Lowering it removes those
	// with the highest numbers.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`

	// Template is the pod of each sandbox. A change affects pods that are created later; with a
	// task template it can change only while there are no replicas.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// UnknownField says, after decoding, which field of the template no pod has, so that the
	// template is refused; empty when there is none.
	UnknownField string `json:"-"`

	// PoolRef names the Pool, in the same namespace, whose pods become the sandboxes.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PoolRef string `json:"poolRef,omitempty"`

	// ExpireTime is when all sandboxes of the batch end. Without it they run until the batch is
	// deleted.
	//
	// +optional
	ExpireTime *metav1.Time `json:"expireTime,omitempty"`

	// Pause freezes the processes of the sandboxes, which keep their memory. It needs execd in the
	// pods.
	//
	// +optional
	Pause bool `json:"pause,omitempty"`

	// Sleep is when the sandbox falls asleep or ends by itself. It needs execd in the pod.
	//
	// +optional
	Sleep *Sleep `json:"sleep,omitempty"`

	// TaskTemplate is the process that the pod's task-executor starts in each sandbox. It can
	// change only while there are no replicas.
	//
	// +optional
	TaskTemplate *TaskTemplate `json:"taskTemplate,omitempty"`

	// Claim is what a pod of the Pool becomes whose main container waits for that. The lifecycle
	// service sets it.
	//
	// +optional
	Claim *Claim `json:"claim,omitempty"`

	// ShardPatches changes the template for the sandbox of the same number, as a strategic merge
	// patch.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10000
	ShardPatches []runtime.RawExtension `json:"shardPatches,omitempty"`

	// ShardTaskPatches changes the task template for the sandbox of the same number, as a JSON
	// merge patch.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10000
	ShardTaskPatches []runtime.RawExtension `json:"shardTaskPatches,omitempty"`

	// TaskResourcePolicyWhenCompleted is the policy for a sandbox whose task has ended: Retain
	// keeps it until the batch ends, Release releases its pod at once.
	//
	// +optional
	// +kubebuilder:default=Retain
	TaskResourcePolicyWhenCompleted TaskResourcePolicy `json:"taskResourcePolicyWhenCompleted,omitempty"`

	// ProvisionTimeoutSeconds is how long a Pending batch may take until every sandbox is usable:
	// after it, sandboxes that are not usable end with the reason that delays them, or
	// PROVISION_TIMEOUT. Without it the batch waits without a limit, for example for a node with
	// capacity.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	ProvisionTimeoutSeconds *int32 `json:"provisionTimeoutSeconds,omitempty"`

	// TTLSecondsAfterFinished is how long the record of a batch that has ended (Terminated or
	// Failed) is kept, in seconds. Without it an expired batch is deleted at once, and one that
	// ended otherwise is kept.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// Sleep is when a sandbox falls asleep, which freezes its processes, or ends by itself.
type Sleep struct {
	// AutoResume says that requests to execd wake the sandbox.
	//
	// +optional
	// +kubebuilder:default=true
	AutoResume bool `json:"autoResume"`
	// Idle is what happens once nothing has kept the sandbox awake for long enough; without it,
	// nothing does.
	//
	// +optional
	Idle *Idle `json:"idle,omitempty"`
	// Timeout has the sandbox fall asleep at expireTime; without it the sandbox ends then.
	//
	// +optional
	Timeout *Timeout `json:"timeout,omitempty"`
}

// Idle is what happens to a sandbox that nothing keeps awake.
type Idle struct {
	Action IdleAction `json:"action"`
	// Milliseconds is for how long nothing must have kept the sandbox awake.
	//
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=86400000
	Milliseconds int64 `json:"milliseconds"`
}

// IdleAction is what happens to a sandbox that is idle.
//
// +kubebuilder:validation:Enum=Pause;Delete
type IdleAction string

// The actions.
const (
	IdlePause  IdleAction = "Pause"  // it falls asleep
	IdleDelete IdleAction = "Delete" // it ends
)

// Timeout is how long a sandbox lives that has fallen asleep at expireTime. The controller sets
// expireTime.
type Timeout struct {
	// KeptSeconds is for how long the sandbox is kept then, until it ends.
	//
	// +kubebuilder:validation:Minimum=1
	KeptSeconds int64 `json:"keptSeconds"`
	// LivesSeconds is for how long it lives once it runs again.
	//
	// +kubebuilder:validation:Minimum=1
	LivesSeconds int64 `json:"livesSeconds"`
}

// TaskResourcePolicy is the policy for a sandbox whose task has ended.
//
// +kubebuilder:validation:Enum=Retain;Release
type TaskResourcePolicy string

// The task resource policies.
const (
	TaskRetain  TaskResourcePolicy = "Retain"
	TaskRelease TaskResourcePolicy = "Release"
)

// TaskTemplate is a process that a task-executor runs in the main container of a pod.
type TaskTemplate struct {
	// Command is the executable and its first arguments.
	//
	// +kubebuilder:validation:MinItems=1
	Command []string `json:"command"`
	// Args are further arguments.
	//
	// +optional
	Args []string `json:"args,omitempty"`
	// Env is added to the environment of the main container.
	//
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// WorkingDir is the working directory; empty means that of the main container.
	//
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`
	// TimeoutSeconds is after how long the task is ended as failed; 0 means never.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	// Readiness must succeed before the sandbox counts as ready. Without it a started task does.
	//
	// +optional
	Readiness *TaskReadiness `json:"readiness,omitempty"`
}

// Claim is a sandbox in the main container of a pod that was started as "execd-init await". The
// execd there takes one claim, and starts the entrypoint then.
type Claim struct {
	// Container is the name of the container that waits.
	//
	// +kubebuilder:validation:MinLength=1
	Container string `json:"container"`
	// Entrypoint is the executable and its arguments.
	//
	// +kubebuilder:validation:MinItems=1
	Entrypoint []string `json:"entrypoint"`
	// Env is added to the environment of the container.
	//
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// Limits are those of the container's limits that are to be others before the entrypoint
	// starts. The pod is resized in place, and its requests with it.
	//
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Egress says that the pod has an egress sidecar.
	//
	// +optional
	Egress bool `json:"egress,omitempty"`
	// NetworkPolicy, unless it is empty, is what the egress sidecar holds before the entrypoint
	// starts, as the JSON of its API.
	//
	// +optional
	NetworkPolicy string `json:"networkPolicy,omitempty"`
	// Token is the entry of a Secret in the batch's namespace with what execd demands as its access
	// token from then on.
	Token SecretKeySelector `json:"token"`
}

// EnvVar is an environment variable.
//
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.valueFrom)",message="value and valueFrom exclude each other"
type EnvVar struct {
	// Name of the variable.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Value of the variable.
	//
	// +optional
	Value string `json:"value,omitempty"`
	// ValueFrom is the source of the value instead.
	//
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource is the source of the value of a variable.
type EnvVarSource struct {
	// SecretKeyRef is an entry of a Secret in the batch's namespace. It is read once, before the
	// first task that names it is started.
	SecretKeyRef SecretKeySelector `json:"secretKeyRef"`
}

// SecretKeySelector names an entry of a Secret.
type SecretKeySelector struct {
	// Name of the Secret.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Key of the entry.
	//
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// TaskReadiness is an HTTP GET that must answer with 200.
type TaskReadiness struct {
	// Port on the pod.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Path of the request.
	//
	// +kubebuilder:default=/
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path,omitempty"`
}

// Phase is the state of the batch. The names are those of the lifecycle document's states.
type Phase string

// The phases.
const (
	PhasePending Phase = "Pending" // not every sandbox is usable yet
	// every sandbox was proven usable; the condition Ready says whether all are
	PhaseRunning    Phase = "Running"
	PhasePausing    Phase = "Pausing"    // being frozen
	PhasePaused     Phase = "Paused"     // every sandbox is frozen
	PhaseResuming   Phase = "Resuming"   // being thawed
	PhaseStopping   Phase = "Stopping"   // being removed
	PhaseTerminated Phase = "Terminated" // ended, no pod of it runs
	PhaseFailed     Phase = "Failed"     // ended by an error; no pod runs, as far as nodes report
)

// Finished reports whether no phase follows.
func (p Phase) Finished() bool { return p == PhaseTerminated || p == PhaseFailed }

// BatchSandboxStatus is the observed state.
type BatchSandboxStatus struct {
	// ObservedGeneration is the generation of the spec that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of pods.
	//
	// +optional
	// +kubebuilder:default=0
	Replicas int32 `json:"replicas"`
	// Allocated is the number of sandboxes with a pod: one that is scheduled, or one of the pool.
	//
	// +optional
	// +kubebuilder:default=0
	Allocated int32 `json:"allocated"`
	// Ready is the number of sandboxes proven usable.
	//
	// +optional
	// +kubebuilder:default=0
	Ready int32 `json:"ready"`
	// TaskStats counts the sandboxes by the state of their task; absent without a task template.
	//
	// +optional
	TaskStats *TaskStats `json:"taskStats,omitempty"`
	// Outcomes has a letter for each sandbox, by number, so that a restarted controller has
	// every end: "-" has not ended; "S" succeeded and "F" failed, and the pod is released; "s" and
	// "f": the task ended so, and the pod is kept (Retain); "R": the number was not wanted, its pod
	// goes. None means "-".
	//
	// +optional
	// +kubebuilder:validation:MaxLength=10000
	Outcomes string `json:"outcomes,omitempty"`
	// Phase is the state of the batch; Reason, in upper snake case, and Message give its cause.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// History is the latest changes of phase, oldest first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	History []PhaseChange `json:"history,omitempty"`
	// Addresses are the pods' IP addresses by the sandboxes' numbers; empty strings stand for those
	// that have none yet.
	//
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// FinishedAt is when the batch became Terminated or Failed.
	//
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
	// Conditions of the batch: Ready, Invalid and Degraded.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The types of conditions.
const (
	ConditionReady   = "Ready"   // every sandbox is proven usable
	ConditionInvalid = "Invalid" // template, patch or pool break a rule: the message names it
	// at least one of the sandboxes has ended by an error: reason and message are those of the
	// first that did
	ConditionDegraded = "Degraded"
)

// PhaseChange is a change of phase.
type PhaseChange struct {
	Phase Phase `json:"phase"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string           `json:"message,omitempty"`
	Time    metav1.MicroTime `json:"time"`
}

// TaskStats counts sandboxes by the state of their task.
type TaskStats struct {
	Pending int32 `json:"pending"`
	Running int32 `json:"running"`
	Succeed int32 `json:"succeed"`
	Failed  int32 `json:"failed"`
	// Unknown are those whose task-executor does not answer.
	Unknown int32 `json:"unknown"`
}
